"The notebooks as sources: layout, imports, stored outputs, and whether modules and README follow from them."
import ast, copy, json, re
from types import SimpleNamespace
import pytest
from conftest import ROOT
from check_export import differences
from render_readme import difference
from repo import default_exp, directives, notebooks, read_nb, settings, text

cfg = settings()
lib, nbs_path = cfg['lib_path'], cfg['nbs_path']

def load(path):
    "A notebook with what the rules below ask of it."
    nb = read_nb(ROOT/path)
    m = re.match(r'(\d\d)_(\w+)$', path.stem)
    return SimpleNamespace(path=path, cells=nb['cells'], nb=nb, module=default_exp(nb),
                           number=int(m[1]) if m else None, name=m[2] if m else path.stem,
                           prose=path.name == 'index.ipynb' or len(path.parts) > 2)

nbs = [load(o) for o in notebooks()]
modules = [o for o in nbs if not o.prose]
number = {o.module: o.number for o in modules}

def code_cells(nb):
    "`(cell number, cell, directives)` of each code cell."
    for i, c in enumerate(nb.cells):
        if c['cell_type'] == 'code': yield i, c, directives(c['source'])

def is_export(d): return bool(set(d) & {'export', 'exporti', 'exports'})

def tree(c):
    "The syntax tree of cell `c`, its magics and shell lines left out."
    return ast.parse(re.sub(r'^(\s*)[%!].*$', r'\1pass', c['source'], flags=re.M))

def own_imports(node_tree):
    "Modules of this library that `node_tree` imports, `''` for the package itself."
    for n in ast.walk(node_tree):
        if isinstance(n, ast.Import): names = [a.name for a in n.names]
        elif isinstance(n, ast.ImportFrom) and n.level: names = [f'{lib}.{n.module or ""}']
        elif isinstance(n, ast.ImportFrom) and n.module == lib: names = [f'{lib}.{a.name}' for a in n.names]
        elif isinstance(n, ast.ImportFrom): names = [n.module]
        else: continue
        for o in names:
            if o.split('.')[0] == lib: yield o.partition('.')[2].split('.')[0]

def report(rows):
    "Fail with all `rows`, one a line."
    rows = list(rows)
    if rows: pytest.fail('\n'.join(map(str, rows)), pytrace=False)

def test_modules_match_a_fresh_export():
    report(differences())

def test_readme_matches_index():
    report([difference()] if difference() else [])

def test_there_are_notebooks():
    assert modules and any(o.path.name == 'index.ipynb' for o in nbs)

def test_names_and_numbers():
    rows = [f'{o.path}: a module notebook is called NN_module.ipynb and exports that module, not {o.module}'
            for o in modules if o.number is None or o.name != o.module]
    taken = [o.number for o in modules]
    rows += [f'{o.path}: its number is taken twice' for o in modules if taken.count(o.number) > 1]
    rows += [f'{o.path}: index and tutorials export nothing' for o in nbs if o.prose and o.module]
    report(rows)

def test_opening():
    rows = []
    for o in modules:
        first, second = (o.cells + [dict(cell_type='none', source='')]*2)[:2]
        if first['cell_type'] != 'code' or 'default_exp' not in directives(first['source']):
            rows.append(f'{o.path}: the first cell is `#| default_exp ...`')
        if second['cell_type'] != 'markdown' or not re.match(r'# \S.*\n+> \S[^\n]*', second['source']):
            rows.append(f'{o.path}: the second cell is Markdown: an H1, then a one-line blockquote')
    report(rows)

def test_imports_go_down():
    rows = []
    for o in modules:
        for i, c, d in code_cells(o):
            for dep in own_imports(tree(c)):
                # a notebook may import its own module to test it as installed, but not from exported code
                if dep == o.module and not is_export(d): continue
                if dep.startswith('__'): continue
                if dep and dep not in number: rows.append(f'{o.path} cell {i}: imports {dep}, which no notebook exports')
                elif dep and number[dep] >= o.number: rows.append(f'{o.path} cell {i}: imports {dep}, which is not lower')
    report(rows)

def test_no_star_import_in_exports():
    report(f'{o.path} cell {i}: star import' for o in nbs for i, c, d in code_cells(o) if is_export(d)
           for n in ast.walk(tree(c)) if isinstance(n, ast.ImportFrom) and any(a.name == '*' for a in n.names))

def test_every_export_has_a_docstring():
    kinds = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
    report(f'{o.path} cell {i}: {n.name}' for o in modules for i, c, d in code_cells(o) if is_export(d)
           for n in tree(c).body if isinstance(n, kinds) and not n.name.startswith('_') and not ast.get_docstring(n))

def test_every_export_is_followed_by_a_test_or_a_demo():
    "After an exported cell that defines something, one of the next three code cells is not exported."
    rows = []
    for o in modules:
        cs = list(code_cells(o))
        for k, (i, c, d) in enumerate(cs):
            defines = is_export(d) and any(isinstance(n, (ast.FunctionDef, ast.ClassDef)) for n in tree(c).body)
            if defines and all(is_export(later) for _, _, later in cs[k+1:k+4]):
                rows.append(f'{o.path} cell {i}: no test or demo within the next three code cells')
    report(rows)

def test_stored_outputs():
    "No errors, no paths of somebody's machine, no pieces of a progress display."
    paths = re.compile(r'(?<![\w.-])/(?:home|root|work|tmp|Users)/\w')
    rows = []
    for o in nbs:
        for i, c, _ in code_cells(o):
            for out in c.get('outputs', []):
                if out['output_type'] == 'error': rows.append(f'{o.path} cell {i}: a stored error')
                data = {'text/plain': out['text']} if out['output_type'] == 'stream' else out.get('data', {})
                shown = '\n'.join(text(v) if isinstance(v, (str, list)) else json.dumps(v) for k, v in data.items()
                                  if not k.startswith('image/') or 'svg' in k)
                if paths.search(shown): rows.append(f'{o.path} cell {i}: {paths.search(shown)[0]}... in an output')
                if re.search(r'\x1b|\r|\x08', shown): rows.append(f'{o.path} cell {i}: terminal codes in an output')
    report(rows)

def test_cells_have_ids():
    rows = []
    for o in nbs:
        ids = [c.get('id') for c in o.cells]
        rows += [f'{o.path} cell {i}: no id' for i, c in enumerate(ids) if not c]
        rows += [f'{o.path}: id {c} stands twice' for c in sorted({c for c in ids if c and ids.count(c) > 1})]
    report(rows)

def test_notebooks_are_clean():
    from nbdev.clean import clean_nb
    rows = []
    for o in nbs:
        nb = json.loads((ROOT/o.path).read_text(encoding='utf8'))
        cleaned = copy.deepcopy(nb)
        clean_nb(cleaned)
        if cleaned != nb: rows.append(f'{o.path}: run nbdev_clean')
    report(rows)

def test_prose_runs_its_snippets():
    report(f'{o.path} cell {i}: Python in a Markdown fence is never run' for o in nbs if o.prose
           for i, c in enumerate(o.cells) if c['cell_type'] == 'markdown' and re.search(r'^```\s*\{?(python|py)\b', c['source'], re.M))

def test_links_lead_somewhere():
    "Relative links and pictures of every notebook, seen from its folder."
    rows = []
    for o in nbs:
        for i, c in enumerate(o.cells):
            if c['cell_type'] != 'markdown': continue
            prose = re.sub(r'^```.*?^```|`[^`\n]*`', '', c['source'], flags=re.M|re.S)
            for url in re.findall(r'\]\(\s*<?([^)\s>]+)', prose) + re.findall(r'\b(?:src|href)="([^"]+)"', prose):
                url = url.partition('#')[0]
                if url and not re.match(r'[a-z][\w+.-]*:', url, re.I) and not (ROOT/o.path.parent/url).exists():
                    rows.append(f'{o.path} cell {i}: {url} is not there')
    report(rows)
