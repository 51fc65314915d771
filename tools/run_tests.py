#!/usr/bin/env python3
"""Runs everything: the repository's own checks (export, README, notebook lint), every notebook, then pytest.

It goes on to the end whatever fails, closes with one plain line `N passed, N failed` (checks and tests as pytest counts
them, and notebooks), and exits 1 when anything failed. Run it as `make test`."""
import os, re, signal, subprocess, sys, tempfile, threading, time
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from repo import ROOT, notebooks

# one thread each, two notebooks or test files at a time
threads = {o: '1' for o in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS')}
env = {**os.environ, **threads, 'OMP_WAIT_POLICY': 'PASSIVE', 'MPLBACKEND': 'Agg', 'PYTHONUNBUFFERED': '1'}
n_workers = 2
one_nb = 'import sys; from nbdev.test import nbdev_test; nbdev_test.__wrapped__(path=sys.argv[1], n_workers=0)'
nb_limit, pytest_limit = 900, 2700
checks = 'tests/test_notebooks.py'
summary = re.compile(r'=+ .*\bin [\d.]+s.* =+$')

running = set()

def start(cmd):
    "Start `cmd` at the repository's root in a process group of its own, outputs joined."
    p = subprocess.Popen(cmd, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors='replace', start_new_session=True)
    running.add(p)
    return p

def stop(p):
    "End `p` and what it started, after a moment to remove its temporary files, of which a clean environment is several GB."
    if p.poll() is None:
        p.send_signal(signal.SIGINT)
        try: p.wait(20)
        except subprocess.TimeoutExpired: pass
    try: os.killpg(p.pid, signal.SIGKILL)
    except ProcessLookupError: pass

def say(*o, **kw): print(*o, flush=True, **kw)

def run_nb(nb):
    "Run one notebook's tests: (problem or None, output, seconds)."
    t = time.time()
    p = start([sys.executable, '-c', one_nb, str(nb)])
    try: out, _ = p.communicate(timeout=nb_limit)
    except subprocess.TimeoutExpired:
        stop(p)
        out, why = p.communicate()[0], f'stopped after {nb_limit} s'
    else: why = None if p.returncode == 0 and 'Success.' in out else f'exit status {p.returncode}'
    running.discard(p)
    return why, out, time.time()-t

def run_notebooks(nbs):
    "Run `nbs`, the ones in subfolders first since they take longest: number passed, names of the failed, number skipped."
    failed = []
    with ThreadPoolExecutor(n_workers) as ex:
        todo = {ex.submit(run_nb, o): o for o in sorted(nbs, key=lambda o: (-len(o.parts), o))}
        try:
            for i, f in enumerate(as_completed(todo), 1):
                why, out, secs = f.result()
                say(f'[{i:2}/{len(nbs)}] {"FAILED" if why else "passed"}  {todo[f]}  {secs:.0f} s')
                if why:
                    failed.append(todo[f])
                    say(*(f'    {l}\n' for l in [*out.splitlines()[-80:], why]), sep='')
        finally:
            # interrupted: start no more, and do not wait for those that run
            ex.shutdown(wait=False, cancel_futures=True)
            for p in list(running): stop(p)
    return len(nbs)-len(failed), failed, 0

def run_pytest(*args):
    "Run pytest with `args`, showing its progress: number passed, names of the failed, number skipped."
    with tempfile.TemporaryDirectory() as d:
        xml = Path(d)/'result.xml'
        p = start([sys.executable, '-m', 'pytest', '-v', '--color=no', f'--junitxml={xml}', *args])
        timer = threading.Timer(pytest_limit, stop, [p])
        timer.daemon = True
        timer.start()
        # its closing count is left out: ours, over everything, comes last
        for line in p.stdout:
            if not summary.match(line.rstrip()): say(line.rstrip('\n'))
        rc = p.wait()
        timer.cancel()
        running.discard(p)
        cases = list(ET.parse(xml).getroot().iter('testcase')) if xml.exists() else []
    # a test that fails and whose clean-up fails too stands there twice, as two failures
    kind = lambda c: next((o.tag for o in c if o.tag in ('failure', 'error', 'skipped')), 'passed')
    kinds = [kind(c) for c in cases]
    failed = [f"{c.get('classname')}::{c.get('name')}".lstrip(':') for c, k in zip(cases, kinds) if k in ('failure', 'error')]
    if rc and not failed:
        failed = [f'pytest ended with status {rc}' + (', having run no test' if rc == 5 else '')]
    return kinds.count('passed'), failed, kinds.count('skipped')

def main():
    began, title = time.time(), lambda s: say(f'\n--- {s}')
    title('checks: fresh export, README, notebook lint')
    results = [run_pytest(checks)]
    nbs = notebooks()
    title(f'notebooks: nbdev_test on {len(nbs)}, {n_workers} at a time')
    results.append(run_notebooks(nbs))
    title('pytest')
    results.append(run_pytest('tests', f'--ignore={checks}', '-n', str(n_workers), '--dist', 'loadfile', '--max-worker-restart=0'))
    title('result')
    for name, (p, f, s) in zip(('checks', 'notebooks', 'pytest'), results):
        say(f'{name:<10} {p:4} passed  {len(f):4} failed' + (f'  {s:4} skipped' if s else ''))
        for o in f: say(f'    {o}')
    say(f'{(time.time()-began)/60:.1f} minutes')
    passed, failed = sum(p for p, _, _ in results), sum(len(f) for _, f, _ in results)
    say(f'{passed} passed, {failed} failed')
    return 1 if failed else 0

if __name__ == '__main__':
    # a terminated run, like an interrupted one, leaves nothing behind; a shell's background job starts with SIGINT ignored
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try: code = main()
    except KeyboardInterrupt: code = 130
    finally:
        for p in list(running): stop(p)
    sys.exit(code)
