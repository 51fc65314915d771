"Where this repository's files are: shared by the other tools and by the tests. Standard library only."
import json, os, re, shutil, subprocess
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
skip_dirs = {'runs', 'build', 'dist', '_docs', '_proc', '__pycache__'}

def settings(root=ROOT):
    "The `[DEFAULT]` section of `root`'s settings.ini."
    cfg = ConfigParser(delimiters=['='])
    with open(Path(root)/'settings.ini', encoding='utf8') as f: cfg.read_file(f)
    return cfg['DEFAULT']

def files(root=ROOT):
    "Files of the working tree that git tracks or would track, relative to `root`."
    root = Path(root)
    git = ['git', '-C', str(root), 'ls-files', '-z', '--cached', '--others', '--exclude-standard']
    # without git (an unpacked archive) walk the folder, which then holds little else
    res = subprocess.run(git, capture_output=True, text=True) if (root/'.git').exists() else None
    if res and res.returncode == 0: names = res.stdout.split('\0')
    else:
        names = []
        for d, subs, fs in os.walk(root):
            subs[:] = [o for o in subs if o not in skip_dirs and not o.endswith('.egg-info')
                       and (not o.startswith('.') or o == '.ci')]
            names += [os.path.relpath(os.path.join(d, f), root) for f in fs]
    return sorted({Path(o) for o in names if o and (root/o).is_file()})

def copy_tree(dest, root=ROOT):
    "Copy the `files` of `root` to the folder `dest`, as a fresh clone of the working tree would hold them."
    for f in files(root):
        (dest/f).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root/f, dest/f)
    return dest

def notebooks(root=ROOT):
    "The notebooks nbdev looks at, relative to `root`: names and folders opening with `_` or `.` are left out."
    res = sorted((Path(root)/settings(root)['nbs_path']).rglob('*.ipynb'))
    res = [o.relative_to(root) for o in res]
    return [o for o in res if not any(p[0] in '._' for p in o.parts)]

def read_nb(path):
    "The notebook at `path` as a dictionary, sources as strings."
    nb = json.loads(Path(path).read_text(encoding='utf8'))
    for c in nb['cells']: c['source'] = text(c['source'])
    return nb

def text(s):
    "A notebook's string, which may be stored as a list of lines."
    return s if isinstance(s, str) else ''.join(s)

def directives(source):
    "The `#| name: value` lines that open a code cell, as a dictionary of name -> value."
    res = {}
    for line in source.splitlines():
        if not line.strip(): continue
        m = re.match(r'#\s*\|\s*([\w-]+)\s*:?\s*(.*)', line)
        if not m: break
        res[m[1]] = m[2].strip()
    return res

def default_exp(nb):
    "The module that notebook `nb` exports to, or None."
    for c in nb['cells']:
        if c['cell_type'] == 'code' and directives(c['source']).get('default_exp'):
            return directives(c['source'])['default_exp']
