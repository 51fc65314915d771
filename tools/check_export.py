#!/usr/bin/env python3
"""Exports the notebooks afresh into a temporary folder and compares that with what is here.

A module that differs, is missing, or has no notebook any more is listed, and so is nbs/nbdev.yml when it does not
follow from settings.ini. Exits 1 when anything is listed."""
import os, shutil, subprocess, sys, tempfile
from pathlib import Path
from repo import ROOT, notebooks, settings

export = 'from nbdev.doclinks import nbdev_export; nbdev_export.__wrapped__(); ' \
         'from nbdev.quarto import refresh_quarto_yml; refresh_quarto_yml()'

def fresh_export(dest, root=ROOT):
    "Export `root`'s notebooks into the empty folder `dest`, which starts without any generated module."
    cfg = settings(root)
    keep = ['settings.ini', f"{cfg['lib_path']}/__init__.py", f"{cfg['nbs_path']}/_quarto.yml"]
    for f in [*map(Path, keep), *notebooks(root)]:
        if not (root/f).exists(): continue
        (dest/f).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root/f, dest/f)
    # nbdev exports nothing while IN_TEST is set
    env = {k: v for k, v in os.environ.items() if k != 'IN_TEST'}
    res = subprocess.run([sys.executable, '-c', export], cwd=dest, env=env, capture_output=True, text=True)
    if res.returncode: raise RuntimeError(f'the fresh export failed:\n{res.stdout}{res.stderr}')
    return dest

def differences(root=ROOT):
    "What a fresh export would change in `root`, one line each."
    root, cfg = Path(root), settings(root)
    lib, yml = Path(cfg['lib_path']), Path(cfg['nbs_path'])/'nbdev.yml'
    with tempfile.TemporaryDirectory() as d:
        new = fresh_export(Path(d), root)
        here, there = ({o.relative_to(b) for o in (b/lib).rglob('*.py')} for b in (root, new))
        res = [f'{o}: no notebook exports it (delete it)' for o in here-there]
        res += [f'{o}: missing (run nbdev_export)' for o in there-here]
        res += [f'{o}: differs from its notebook (run nbdev_export)' for o in here&there
                if (root/o).read_bytes() != (new/o).read_bytes()]
        if not (root/yml).exists() or (root/yml).read_bytes() != (new/yml).read_bytes():
            res.append(f'{yml}: does not follow from settings.ini (run make export)')
    return sorted(res)

def main():
    try: found = differences()
    except RuntimeError as e: sys.exit(str(e))
    for o in found: print(o)
    print('A fresh export changes nothing.' if not found else f'A fresh export changes {len(found)} files.')
    return 1 if found else 0

if __name__ == '__main__': sys.exit(main())
