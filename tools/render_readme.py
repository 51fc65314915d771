#!/usr/bin/env python3
"""Renders README.md from nbs/index.ipynb.

usage: render_readme.py [--check]     --check: write nothing, exit 1 when README.md differs

Markdown cells are kept, links and pictures made relative to the repository's root. Code cells become Python fences
without their `#|` lines, and text outputs follow in fences of their own. `hide`, `echo: false` and `output: false` are
respected. Pictures belong in Markdown cells: a picture among the outputs is an error."""
import difflib, os, posixpath, re, sys
from pathlib import Path
from repo import ROOT, directives, read_nb, settings, text

note = '<!-- Rendered from {nb} by tools/render_readme.py: edit the notebook, then run `make readme`. -->'

def front_matter(source):
    "Title and description of a raw front-matter cell as Markdown."
    kv = dict(re.findall(r'^(\w+):\s*(.+?)\s*$', source, re.M))
    kv = {k: v.strip('"\'') for k, v in kv.items()}
    res = [f"# {kv['title']}"] if 'title' in kv else []
    return '\n\n'.join(res + ([f"> {kv['description']}"] if 'description' in kv else []))

def relink(md, folder):
    "Rewrite the relative links and pictures of `md`, written in `folder`, to be relative to the repository's root."
    def new(url):
        if re.match(r'([a-z][\w+.-]*:|/|#)', url, re.I): return url
        path, sep, anchor = url.partition('#')
        path = posixpath.normpath(posixpath.join(folder, path))
        if path.startswith('..'): raise ValueError(f'{url!r} in the index leads out of the repository')
        return path + sep + anchor
    def links(s):
        s = re.sub(r'(\]\(\s*<?)([^)\s>]+)', lambda m: m[1] + new(m[2]), s)
        s = re.sub(r'(\b(?:src|href)\s*=\s*["\'])([^"\']+)', lambda m: m[1] + new(m[2]), s)
        return re.sub(r'^(\s*\[[^\]^]+\]:\s*)(\S+)', lambda m: m[1] + new(m[2]), s, flags=re.M)
    # code is left alone: fences first, then spans
    parts = re.split(r'(^(?P<f>```+|~~~+).*?^(?P=f)\s*?$|(?<!`)(?P<t>`+)(?!`).+?(?<!`)(?P=t)(?!`))', md, flags=re.M|re.S)
    return ''.join(links(o) if i % 4 == 0 else o for i, o in enumerate(parts) if i % 4 < 2)

def fence(s, lang=''):
    "`s` in a fence longer than any run of back-ticks it holds."
    ticks = '`' * max(3, 1 + max(map(len, re.findall('`+', s)), default=0))
    return f'{ticks}{lang}\n{s}\n{ticks}'

def output(o, folder):
    "One stored output as Markdown."
    if o['output_type'] == 'error': raise ValueError('the index stores an error: execute it again')
    if o['output_type'] == 'stream': return fence(text(o['text']).rstrip('\n'), 'text')
    data = {k: text(v) for k, v in o['data'].items() if isinstance(v, (str, list))}
    if 'text/markdown' in data: return relink(data['text/markdown'].strip('\n'), folder)
    if any(k.startswith('image/') for k in data):
        raise ValueError('the index stores a picture as an output: save it to a file and show it from a Markdown cell')
    return fence(data.get('text/plain', '').strip('\n'), 'text')

def cell(c, folder):
    "One cell as Markdown blocks."
    s = c['source'].strip('\n')
    if c['cell_type'] == 'raw': return [front_matter(s)] if s.startswith('---') else []
    if c['cell_type'] == 'markdown':
        if c.get('attachments'): raise ValueError('the index holds an attached picture: save it to a file instead')
        return [relink(s, folder)]
    d = directives(s)
    if 'hide' in d or d.get('include') == 'false': return []
    code = '\n'.join(l for l in s.splitlines() if not re.match(r'#\s*\|', l)).strip('\n')
    res = [fence(code, 'python')] if code and d.get('echo') != 'false' else []
    if d.get('output') != 'false': res += [output(o, folder) for o in c['outputs']]
    return res

def render(root=ROOT):
    "The text of README.md for the repository at `root`."
    cfg = settings(root)
    nb = Path(cfg['nbs_path'])/cfg.get('readme_nb', 'index.ipynb')
    folder = nb.parent.as_posix()
    blocks = [note.format(nb=nb.as_posix())]
    for c in read_nb(Path(root)/nb)['cells']: blocks += cell(c, folder)
    return '\n\n'.join(b for b in blocks if b.strip()) + '\n'

def difference(root=ROOT):
    "A unified diff from README.md at `root` to what the index renders to; empty when they agree."
    readme = Path(root)/'README.md'
    old = readme.read_text(encoding='utf8') if readme.exists() else ''
    return '\n'.join(difflib.unified_diff(old.splitlines(), render(root).splitlines(), 'README.md', 'rendered', lineterm=''))

def main():
    if set(sys.argv[1:]) - {'--check'}: sys.exit(__doc__)
    try:
        if '--check' in sys.argv:
            diff = difference()
            print(f'{diff}\nREADME.md differs from its notebook: run make readme.' if diff else 'README.md matches its notebook.')
            return 1 if diff else 0
        tmp = ROOT/'README.md.tmp'
        tmp.write_text(render(), encoding='utf8')
        os.replace(tmp, ROOT/'README.md')
        print('README.md written.')
    except (OSError, ValueError) as e: sys.exit(f'{type(e).__name__}: {e}')

if __name__ == '__main__': sys.exit(main())
