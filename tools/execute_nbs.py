#!/usr/bin/env python3
"""Executes notebooks and stores their real outputs.

usage: execute_nbs.py [NOTEBOOK ...]     default: the index and every tutorial

Each runs in a fresh kernel in its own folder, one thread, like nbdev_test; cells that nbdev_test skips (`tst_flags`,
`eval: false`) keep what they had. Stored are cleaned outputs: the last state of a progress display only, no colour codes,
no warnings raised inside installed packages, no paths of this machine. A notebook that fails is left as it was."""
import os, re, sys, tempfile, time
from html.parser import HTMLParser
from pathlib import Path
from repo import ROOT, directives, notebooks, settings

os.environ.update(OMP_WAIT_POLICY='PASSIVE', OMP_NUM_THREADS='1')
timeout = 1800

ansi = re.compile(r'\x1b\[[0-9;?]*[A-Za-z]')
tqdm_bar = re.compile(r'^.*\d+%\|.*\|.*$\n?|^.*\d+it \[\d+:\d+.*\].*$\n?', re.M)
package_warning = re.compile(r'^\S*(?:site|dist)-packages\S*:\d+: \w*Warning: .*\n(?:  .*\n?)?', re.M)

def last_state(s):
    "What a terminal shows of `s` once carriage returns have overwritten their lines."
    lines = []
    for line in s.replace('\r\n', '\n').split('\n'):
        states = [o for o in line.split('\r') if o.strip()]
        lines.append(states[-1] if states else '')
    return '\n'.join(lines)

def no_paths(s):
    "`s` without the folders of this machine."
    for path, name in (sys.prefix, '.venv'), (str(ROOT), '.'), (str(Path.home()), '~'):
        s = re.sub(re.escape(path) + r'(?=[/\s\'":,)]|$)', name, s)
    tmps = '|'.join({re.escape(tempfile.gettempdir()), '/tmp'})
    return re.sub(rf'(?:{tmps})/[\w.-]+', 'TMP', s)

def clean_text(s):
    "Stream text or plain text as it is stored."
    return no_paths(package_warning.sub('', tqdm_bar.sub('', ansi.sub('', last_state(s)))))

class Table(HTMLParser):
    "Collects the rows of an HTML table."
    def __init__(self, html):
        super().__init__()
        self.rows, self.cell = [], None
        self.feed(html)
    def handle_starttag(self, tag, attrs):
        if tag == 'tr': self.rows.append([])
        if tag in ('td', 'th') and self.rows: self.cell = ''
    def handle_data(self, data):
        if self.cell is not None: self.cell += data
    def handle_endtag(self, tag):
        if tag in ('td', 'th') and self.cell is not None:
            self.rows[-1].append(self.cell.strip())
            self.cell = None
    def __str__(self):
        n = max(map(len, self.rows), default=0)
        rows = [o + ['']*(n-len(o)) for o in self.rows if o]
        widths = [max(map(len, col)) for col in zip(*rows)]
        return '\n'.join('  '.join(f'{c:>{w}}' for c, w in zip(r, widths)).rstrip() for r in rows)

def clean_output(o):
    "The output `o` as it is stored, or None when nothing of it is worth storing."
    if o['output_type'] == 'stream':
        o['text'] = clean_text(o['text'])
        return o if o['text'].strip() else None
    data = o['data']
    if 'text/html' in data:
        bare = re.sub(r'<style.*?</style>|<progress.*?</progress>', '', data['text/html'], flags=re.S)
        # fastprogress clears its bars by showing nothing, and sends its style sheet with each
        if not re.sub(r'<[^>]*>|\s|&nbsp;', '', bare) and '<img' not in bare and '<svg' not in bare: return None
        if 'class="fastprogress"' in bare:
            data['text/html'], data['text/plain'] = bare, str(Table(bare))
            data.pop('text/markdown', None)
    for k in list(data):
        if isinstance(data[k], str) and not k.startswith('image/'):
            data[k] = clean_text(data[k]) if k == 'text/plain' else no_paths(data[k])
    return o

def execute(path):
    "Execute the notebook at `path` in place."
    import nbformat
    from execnb.nbio import read_nb, write_nb
    from nbclient import NotebookClient
    from nbdev.clean import clean_nb
    nb, skip = nbformat.read(path, as_version=4), settings()['tst_flags'].split()
    skipped = {}
    for c in nb.cells:
        d = directives(c.source) if c.cell_type == 'code' else {}
        if d.get('eval', '').lower() == 'false' or any(o in d for o in skip):
            skipped[c.id] = c.get('outputs', [])
            c.metadata['tags'] = ['skip-execution']
    # the kernel draws its own pictures, and imports this working tree
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')]))}
    env.pop('MPLBACKEND', None)
    # a kernel's word on its own transport is nothing to show
    client = NotebookClient(nb, timeout=timeout, kernel_name='python3', coalesce_streams=True, extra_arguments=['--log-level=ERROR'],
                            resources={'metadata': {'path': str(path.parent)}})
    client.execute(env=env)
    for c in nb.cells:
        if c.cell_type != 'code': continue
        outs = skipped[c.id] if c.id in skipped else [clean_output(o) for o in c.outputs]
        c.outputs = [o for o in outs if o]
    tmp = path.with_name(f'.{path.name}.tmp')
    nbformat.write(nb, tmp)
    # stored exactly as nbdev_clean would leave it
    new = read_nb(tmp)
    clean_nb(new)
    write_nb(new, tmp)
    os.replace(tmp, path)

def main():
    if any(o.startswith('-') for o in sys.argv[1:]): sys.exit(__doc__)
    nbs = settings()['nbs_path']
    default = [o for o in notebooks() if o.name == 'index.ipynb' or o.parent != Path(nbs)]
    paths = [Path(o).resolve() for o in sys.argv[1:]] or [ROOT/o for o in default]
    for p in paths:
        if not p.is_file(): sys.exit(f'no such notebook: {p}')
    failed = 0
    for p in paths:
        print(f'{os.path.relpath(p, ROOT)} ...', end=' ', flush=True)
        start = time.time()
        try: execute(p)
        except Exception as e:
            failed += 1
            print(f'failed\n{e}')
        else: print(f'{time.time()-start:.0f} s')
    return 1 if failed else 0

if __name__ == '__main__': sys.exit(main())
