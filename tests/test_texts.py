"TRAPS 47, 48, 49 and what else can be wrong with published text files: layouts, counts, labels, bytes, quotes, and no network."
import csv, io, os, pickle, shutil, tarfile, tracemalloc
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import pytest
import lrpt_nb.texts as texts
from lrpt_nb.listops import listops_decode, listops_eval, listops_rows, listops_vocab
from lrpt_nb.sources import is_ready, sources
from lrpt_nb.storage import list_prepared, verify
from lrpt_nb.texts import imdb, lra_listops, retrieval

few = dict(counts='any', progress=False)

@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    "Prepared sets go to a folder of the test; no raw files but its own; no network."
    monkeypatch.setenv('LRPT_NB_DATA', str(tmp_path/'prepared'))
    monkeypatch.delenv('LRPT_NB_SOURCES', raising=False)
    import datasets
    def refuse(*args, **kwargs): raise ConnectionError("Cannot reach the hub: name resolution failed")
    monkeypatch.setattr(datasets, 'load_dataset', refuse)

def text_of(p, row): return ''.join(p.card['symbols'][i] for i in row)
def all_texts(p, split, col='x'): return [text_of(p, o).removesuffix('<end>') for o in p.split(split)[col]]

# ---- reviews

def review(split, kind, i): return f"{'Good' if kind == 'pos' else 'Bad'} film, {split} {kind} {i}.<br /><br />" + 'so '*(i % 30+1)

def make_imdb(root, n=60, films=80, text=review, urls=True, seed=0):
    "The layout of aclImdb_v1.tar.gz: the folder `root/aclImdb`."
    rng, at = np.random.default_rng(seed), root/'aclImdb'
    for split in ('train', 'test'):
        for kind, stars in (('neg', '1234'), ('pos', ('7', '8', '9', '10'))):
            (at/split/kind).mkdir(parents=True)
            for i in range(n): (at/split/kind/f'{i}_{stars[i % 4]}.txt').write_text(text(split, kind, i), encoding='utf8')
            of = np.sort(rng.integers(0, films, n))
            if urls: (at/split/f'urls_{kind}.txt').write_text(''.join(f'http://www.imdb.com/title/tt{f:07}/usercomments\n' for f in of))
    (at/'train'/'unsup').mkdir()
    (at/'train'/'unsup'/'0_0.txt').write_text('not labelled')
    (at/'train'/'urls_unsup.txt').write_text('http://www.imdb.com/title/tt1/usercomments\n')
    for o in ('README', 'imdb.vocab', 'train/labeledBow.feat'): (at/o).write_text('x')
    return at

def tar_of(at, file):
    with tarfile.open(file, 'w:gz') as t: t.add(at, at.name)
    return file

def test_every_place_gives_the_same_reviews(tmp_path, monkeypatch):
    at = make_imdb(tmp_path/'raw')
    (tmp_path/'tar').mkdir()
    file = tar_of(at, tmp_path/'tar'/'aclImdb_v1.tar.gz')
    sets = [imdb(o, min_freq=1, home=tmp_path/f'home{i}', **few) for i, o in enumerate((at, tmp_path/'raw', str(file), tmp_path/'tar'))]
    monkeypatch.setenv('LRPT_NB_SOURCES', str(tmp_path/'env'))
    assert is_ready('imdb') == 'missing'
    shutil.copytree(at, tmp_path/'env'/'imdb'/'aclImdb')
    assert is_ready('imdb') == 'folder'
    sets.append(imdb(min_freq=1, **few))
    assert is_ready('imdb') == 'folder' # a small copy is prepared
    for p in sets:
        assert p.rows == dict(train=108, valid=12, test=120) and p.splits == ['train', 'valid', 'test'] and verify(p)
        for split in p.splits:
            for col in ('x', 'y', 'group'):
                got, want = p.split(split)[col], sets[0].split(split)[col]
                assert [np.asarray(o).tolist() for o in got] == [np.asarray(o).tolist() for o in want]
    assert all_texts(sets[0], 'test') == [review('test', kind, i) for kind in ('neg', 'pos') for i in range(60)]
    assert sorted(all_texts(sets[0], 'train') + all_texts(sets[0], 'valid')) == sorted(review('train', k, i) for k in ('neg', 'pos') for i in range(60))
    assert sets[2].card['checksums'].keys() == {'aclImdb_v1.tar.gz'} and str(at) in sets[0].card['path']

def test_labels_follow_the_folder_and_validation_is_balanced(tmp_path):
    make_imdb(tmp_path)
    p = imdb(tmp_path, valid=.2, **few)
    for split in p.splits: assert [t.startswith('Good') for t in all_texts(p, split)] == p.split(split)['y'].astype(bool).tolist()
    assert np.bincount(p.split('valid')['y']).tolist() == [12, 12]

@pytest.mark.parametrize('seed', range(5))
def test_no_film_and_no_copy_on_both_sides(tmp_path, seed):
    "Copies differ in case and punctuation and belong to other films; they stay together all the same."
    def text(split, kind, i): return f'the same words, {kind} {i//3}' + ('!'*(i % 3)).upper()
    at = make_imdb(tmp_path, text=text, films=200)
    p = imdb(tmp_path, valid=.2, seed=seed, min_freq=1, **few)
    urls = {k: (at/'train'/f'urls_{k}.txt').read_text().split('\n') for k in ('neg', 'pos')}
    side = lambda split: {(k, t.rstrip('!')) for t in all_texts(p, split) for k in ('neg', 'pos') if f' {k} ' in t}
    assert p.card['groups'] == 'film' and not side('train') & side('valid')
    sides = {'train': set(), 'valid': set()}
    for kind in ('neg', 'pos'):
        for i in range(60):
            where = 'valid' if (kind, f'the same words, {kind} {i//3}') in side('valid') else 'train'
            sides[where].add(urls[kind][i])
    assert not sides['train'] & sides['valid']
    assert p.card['copies_in_train'] == 80 and p.card['test_rows_also_in_train'] == 120

def test_seed_changes_only_the_validation_rows(tmp_path):
    make_imdb(tmp_path)
    a, b, again = (imdb(tmp_path, seed=o, home=tmp_path/str(i), **few) for i, o in enumerate((0, 1, 0)))
    assert all_texts(a, 'valid') == all_texts(again, 'valid') != all_texts(b, 'valid') and all_texts(a, 'test') == all_texts(b, 'test')

def test_vocabulary_is_of_training_rows_and_rare_characters_are_unknown(tmp_path):
    at = make_imdb(tmp_path)
    p = imdb(tmp_path, min_freq=1, **few)
    held = all_texts(p, 'valid')
    mark = {t: c for t, c in zip(held, 'äöüß'*9)}
    for f in at.glob('train/*/*.txt'):
        if (t := f.read_text()) in mark: f.write_text(mark[t] + t, encoding='utf8')
    f = at/'test'/'pos'/'0_7.txt'
    f.write_text('Ω 😀 ' + f.read_text(), encoding='utf8')
    q = imdb(tmp_path, min_freq=1, **few)
    assert q.path != p.path and not set('äöüßΩ😀') & set(q.card['symbols']) and q.card['symbols'][:2] == ['<unk>', '<end>']
    assert sorted(t.removeprefix('<unk>') for t in all_texts(q, 'valid')) == sorted(held) and all(t.startswith('<unk>') for t in all_texts(q, 'valid'))
    assert any(t.startswith('<unk> <unk> Good') for t in all_texts(q, 'test'))
    train = ''.join(all_texts(q, 'train'))
    r = imdb(tmp_path, min_freq=50, **few)
    assert set(r.card['symbols'][2:]) == {c for c in set(train) if train.count(c) >= 50} < set(q.card['symbols'][2:])
    assert r.split('train')['x'].dtype == np.uint8

def test_cut_rows_keep_their_end_and_empty_reviews_have_one_step(tmp_path):
    at = make_imdb(tmp_path)
    (at/'test'/'neg'/'0_1.txt').write_text('')
    p = imdb(tmp_path, max_len=20, min_freq=1, **few)
    for split in p.splits:
        x = p.split(split)['x']
        assert x.lengths.max() == 20 and all(o[-1] == 1 and (o[:-1] != 1).all() for o in x)
    assert p.split('test')['x'].lengths.min() == 1 and p.card['cut']['test'] == 119
    with pytest.raises(ValueError, match='review 0 of test is empty'): imdb(tmp_path, end_token=None, **few)
    (at/'test'/'neg'/'0_1.txt').write_text('so so')
    q = imdb(tmp_path, end_token=None, min_freq=1, **few)
    assert '<end>' not in q.card['symbols'] and all_texts(q, 'test')[0] == 'so so'

def hub_imdb(n=60, split='train', labels=('neg', 'pos')):
    from datasets import ClassLabel, Dataset, Features, Value
    rows = [(review(split, k, i), y) for y, k in enumerate(labels) for i in range(n)]
    return Dataset.from_dict(dict(text=[o[0] for o in rows], label=[o[1] for o in rows]), features=Features(dict(text=Value('string'), label=ClassLabel(names=['neg', 'pos']))))

def test_the_hub_copy_gives_the_same_rows(tmp_path, monkeypatch):
    import datasets
    asked = []
    def load(*args, **kwargs): asked.append((args, kwargs)); return {o: hub_imdb(split=o) for o in ('train', 'test', 'unsupervised')}
    monkeypatch.setattr(datasets, 'load_dataset', load)
    p = imdb(download=True, **few)
    assert asked == [(('stanfordnlp/imdb',), {})] and p.rows == dict(train=108, valid=12, test=120) and 'stanfordnlp/imdb' in p.card['source']
    make_imdb(tmp_path)
    q = imdb(tmp_path, **few)
    assert all_texts(p, 'test') == all_texts(q, 'test') and (p.split('test')['y'] == q.split('test')['y']).all()
    assert sorted(all_texts(p, 'train') + all_texts(p, 'valid')) == sorted(all_texts(q, 'train') + all_texts(q, 'valid'))
    assert 'neighbouring rows' in p.card['groups'] and not set(p.split('train')['group']) & set(p.split('valid')['group'])
    assert not asked[1:], 'files that are here are not fetched'

def test_published_counts_are_one_set_wherever_it_lies(tmp_path, monkeypatch):
    "With the published number of rows the prepared set is found again without its files."
    monkeypatch.setattr(texts.imdb_info, 'rows', dict(train=120, test=120))
    at = make_imdb(tmp_path/'raw')
    p = imdb(at, progress=False)
    shutil.rmtree(at)
    assert imdb(progress=False).path == p.path and len(list_prepared()) == 1
    with pytest.raises(FileNotFoundError, match='does not exist'): imdb(at, progress=False)

@pytest.mark.parametrize('name', ('imdb', 'retrieval', 'lra_listops'))
def test_a_folder_that_is_named_is_read(tmp_path, monkeypatch, name):
    reader, make = readers[name], dict(imdb=lambda at, i: make_imdb(at, text=lambda *o: f'{i} {review(*o)}'), lra_listops=lambda at, i: make_lists(at, seed=i),
        retrieval=lambda at, i: make_pairs(at, row=lambda k: pair_row(k, size=40+i)))[name]
    monkeypatch.setattr(sources[name].info, 'rows', dict(train=120, test=120) if name == 'imdb' else dict(train=60, valid=20, test=30))
    for i in range(2): make(tmp_path/f'L{i}', i)
    a, b = (reader(tmp_path/f'L{i}', progress=False) for i in range(2))
    assert a.path != b.path and all_texts(a, 'test') != all_texts(b, 'test')
    assert reader(tmp_path/'L0', progress=False).path == a.path
    monkeypatch.setenv('LRPT_NB_SOURCES', str(tmp_path/'env'))
    shutil.copytree(tmp_path/'L0', tmp_path/'env'/name)
    assert reader(progress=False).path in (a.path, b.path) and len(list_prepared()) == 2

def test_small_copies_are_known_by_their_files(tmp_path):
    make_imdb(tmp_path/'a'), make_imdb(tmp_path/'b', n=40)
    assert imdb(tmp_path/'a', **few).path != imdb(tmp_path/'b', **few).path
    assert imdb(tmp_path/'b', **few).rows['test'] == 80

def damage_stars(at): (at/'train'/'pos'/'3_10.txt').rename(at/'train'/'pos'/'3_2.txt'); return '2 stars cannot be a pos review'
def damage_bytes(at): (at/'test'/'neg'/'5_2.txt').write_bytes(b'fine\nnot \xff fine'); return r'test/neg/5_2.txt, line 2: byte 9 is 0xff'
def damage_urls(at): (at/'train'/'urls_pos.txt').write_text('http://www.imdb.com/title/tt1/\n'); return 'train/urls_pos.txt has no line 1 .from 0. for review 1'
def damage_labels(at):
    for f in (at/'test'/'pos').glob('*.txt'): f.unlink()
    return '0% of the 60 labels of test are 1'
def damage_all(at):
    for o in ("train", "test"): shutil.rmtree(at/o), (at/o).mkdir()
    return 'holds no reviews'

@pytest.mark.parametrize('damage', (damage_stars, damage_bytes, damage_urls, damage_labels, damage_all))
def test_damaged_reviews_are_named(tmp_path, damage):
    at = make_imdb(tmp_path)
    why = damage(at)
    with pytest.raises(ValueError, match=why) as e: imdb(tmp_path, **few)
    assert str(at) in str(e.value) and not list_prepared()

def test_a_broken_archive_is_named(tmp_path):
    file = tar_of(make_imdb(tmp_path), tmp_path/'aclImdb_v1.tar.gz')
    file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(ValueError, match='aclImdb_v1.tar.gz cannot be read as a whole tar archive'): imdb(file, **few)
    file.write_text('not an archive at all')
    with pytest.raises(ValueError, match='aclImdb_v1.tar.gz cannot be read as a whole tar archive'): imdb(file, **few)
    assert not list_prepared()

# ---- pairs of papers

def paper(i, size=40): return f'Title {i}\nIt’s "new", isn\'t it?\n' + f'word{i} '*size
def pair_row(i, show=lambda t: repr(t.encode()), size=40): return [str(float(i % 2)), f'P{i:05}', f'W{i:05}', show(paper(i, size)), show(paper(i+1, size))]

def make_pairs(root, rows=dict(train=60, eval=20, test=30), row=pair_row, write=lambda r: '\t'.join(r) + '\n'):
    root.mkdir(parents=True, exist_ok=True)
    for k, n in rows.items():
        with open(root/f'new_aan_pairs.{k}.tsv', 'w', encoding='utf8', newline='') as f:
            for i in range(n): f.write(write(row(i)))
    return root

def quoted(row):
    out = io.StringIO()
    csv.writer(out, delimiter='\t', lineterminator='\r\n').writerow(row)
    return out.getvalue()

layouts = {'flat': '', 'tsv_data': 'tsv_data', 'release': 'lra_release/lra_release/tsv_data', 'once': 'lra_release/tsv_data'}

@pytest.mark.parametrize('layout', layouts.values(), ids=layouts)
def test_pairs_in_both_known_layouts(tmp_path, layout):
    "TRAPS 49."
    at = make_pairs(tmp_path/'raw'/layout)
    for spelling, show in (('stored', lambda t: repr(t.encode())), ('decoded', str)):
        p = retrieval(tmp_path/'raw', spelling=spelling, **few)
        assert p.rows == dict(train=60, valid=20, test=30)
        for split, n in p.rows.items():
            assert all_texts(p, split) == [show(paper(i)) for i in range(n)] and all_texts(p, split, 'pair') == [show(paper(i+1)) for i in range(n)]
            assert p.split(split)['y'].tolist() == [i % 2 for i in range(n)]
            assert p.card['files'][split]['path'].startswith(str(at)), 'the path it used (TRAPS 48)'
    assert all(len(o) == 1 and ord(o) < 128 for o in retrieval(tmp_path/'raw', **few).card['symbols'][2:])

def test_pairs_as_pandas_writes_them(tmp_path):
    a = retrieval(make_pairs(tmp_path/'a'), **few)
    b = retrieval(make_pairs(tmp_path/'b', write=quoted), **few)
    plain = lambda i: [str(i % 2), 'a', 'b', f'"{i}" first', f'tab\there "{i}"']
    c = retrieval(make_pairs(tmp_path/'c', row=plain, write=quoted), **few)
    for split in a.splits:
        for col in ('x', 'pair'): assert all_texts(a, split, col) == all_texts(b, split, col)
    assert all_texts(c, 'test')[3] == '"3" first' and all_texts(c, 'test', 'pair')[3] == 'tab\there "3"'

def test_papers_longer_than_csv_allows(tmp_path):
    at = make_pairs(tmp_path, rows=dict(train=4, eval=2, test=2), row=lambda i: pair_row(i, size=40_000))
    with pytest.raises(csv.Error): list(csv.reader(open(at/'new_aan_pairs.eval.tsv'), delimiter='\t'))
    p = retrieval(at, **few)
    assert p.split('train')['x'].lengths.tolist() == [4000]*4 and p.card['files']['train']['cut'] == 8
    assert csv.field_size_limit() == 131072

def test_empty_papers(tmp_path):
    row = lambda i: [str(i % 2), 'a', 'b', '' if i == 3 else 'text', 'b\'\'']
    at = make_pairs(tmp_path, row=row)
    p = retrieval(at, **few)
    assert p.split('train')['x'].lengths[3] == 1 and p.card['files']['train']['empty'] == 1
    assert retrieval(at, spelling='decoded', **few).card['files']['test']['empty'] == 31
    with pytest.raises(ValueError, match='new_aan_pairs.train.tsv: one of the texts of rows 1 ... 60 is empty'): retrieval(at, end_token=None, **few)

def damage_field(lines): lines[3] = b'1.0\ta\tb\tonly one\n'; return 'line 4: 4 fields between tabs, not 5'
def damage_break(lines): lines[3] = b'1.0\ta\tb\tone\ttwo\nlines\n'; return 'line 5: 1 fields between tabs'
def damage_end(lines): lines[-1] = lines[-1][:20]; return 'line 20: . fields'
def damage_utf(lines): lines[2] = b'1.0\ta\tb\tcaf\xe9\tx\n'; return 'line 3: byte 11 of the line is 0xe9'
def damage_label(lines): lines[0] = b'label\tid1\tid2\ttext1\ttext2\n'; return "line 1: the label is 'label'"
def damage_range(lines): lines[1] = b'2.0' + lines[1][3:]; return "line 2: the label is '2.0'"
def damage_class(lines): lines[:] = [b'0.0' + o[3:] for o in lines]; return '0% of the 20 labels of valid'

@pytest.mark.parametrize('damage', (damage_field, damage_break, damage_end, damage_utf, damage_label, damage_range, damage_class))
def test_damaged_pairs_are_named(tmp_path, damage):
    at = make_pairs(tmp_path)
    f = at/'new_aan_pairs.eval.tsv'
    lines = f.read_bytes().splitlines(keepends=True)
    why = damage(lines)
    f.write_bytes(b''.join(lines))
    with pytest.raises(ValueError, match=why) as e: retrieval(at, **few)
    assert str(f) in str(e.value) and not list_prepared()

@pytest.mark.parametrize('reader, make, split', ((retrieval, make_pairs, 'train'), (lra_listops, lambda o: make_lists(o)[0], 'train')), ids=('retrieval', 'listops'))
def test_wrong_counts_name_path_found_and_expected(tmp_path, reader, make, split):
    "TRAPS 48."
    at = make(tmp_path/'raw')
    n = reader(at, **few).rows['train']
    published = sources[reader.__name__].info.rows['train']
    with pytest.raises(ValueError, match=rf'raw.*train has {n} rows, expected {published:,} as published.*counts='): reader(at, progress=False)
    assert reader(at, counts=dict(train=n), progress=False).rows['train'] == n
    with pytest.raises(ValueError, match=rf'train has {n} rows, expected 7;'): reader(at, counts=dict(train=7), progress=False)
    with pytest.raises(ValueError, match='is not known; accepted'): reader(at, counts=dict(eval=7), progress=False)

def test_published_counts(tmp_path, monkeypatch):
    assert texts.imdb_info.rows == dict(train=25_000, test=25_000)
    assert texts.retrieval_info.rows == dict(train=147_086, valid=18_090, test=17_437)
    assert texts.lra_listops_info.rows == dict(train=96_000, valid=2_000, test=2_000)

def test_two_copies_that_differ(tmp_path):
    "TRAPS 48: folders named alike."
    make_pairs(tmp_path/'lra_release'/'tsv_data')
    make_pairs(tmp_path/'lra_release'/'lra_release'/'tsv_data')
    assert retrieval(tmp_path, **few).rows['test'] == 30
    make_pairs(tmp_path/'lra_release'/'tsv_data', rows=dict(test=8))
    with pytest.raises(ValueError, match='different copies.*lra_release/tsv_data, .*lra_release/lra_release/tsv_data'): retrieval(tmp_path, **few)
    assert retrieval(tmp_path/'lra_release'/'tsv_data', **few).rows['test'] == 8

def test_the_hub_copy_of_pairs(tmp_path, monkeypatch):
    import datasets
    asked = []
    def load(kind, data_files):
        asked.append((kind, data_files))
        return {k: datasets.Dataset.from_dict(dict(text=['\t'.join(pair_row(i)) for i in range(n)])) for k, n in dict(train=60, valid=20, test=30).items()}
    monkeypatch.setattr(datasets, 'load_dataset', load)
    p, q = retrieval(download=True, **few), retrieval(make_pairs(tmp_path/'raw'), download=True, **few)
    assert len(asked) == 1 and asked[0][0] == 'text' and asked[0][1]['valid'].endswith('/new_aan_pairs.eval.tsv') and all('OpenNLPLab/lra@' in o for o in asked[0][1].values())
    for split in p.splits:
        for col in ('x', 'pair'): assert all_texts(p, split, col) == all_texts(q, split, col)
    assert {k: v['sha256'] for k, v in p.card['files'].items()} == {k: v['sha256'] for k, v in q.card['files'].items()}

def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(n):
        at = make_pairs(tmp_path/str(n), rows=dict(train=n, eval=4, test=4), row=lambda i: pair_row(i, size=800))
        tracemalloc.start()
        try:
            retrieval(at, **few)
            return tracemalloc.get_traced_memory()[1], (at/'new_aan_pairs.train.tsv').stat().st_size
        finally: tracemalloc.stop()
    (small, _), (large, size) = peak(600), peak(2400)
    assert size > 3e7 and large < 1.2*small

# ---- nested lists

def spelled(ids):
    "The published spelling: each list a left-leaning binary tree."
    def tree(tokens):
        t = tokens.pop(0)
        if not t.startswith('['): return t
        while tokens[0] != ']': t = f'( {t} {tree(tokens)} )'
        return f'( {t} {tokens.pop(0)} )'
    return tree(listops_decode(ids).split())

def make_lists(root, rows=dict(train=60, val=20, test=30), **kw):
    "The folder and the rows in it."
    root.mkdir(parents=True, exist_ok=True)
    ids, labels = listops_rows(sum(rows.values()), **(dict(min_len=5, max_len=80, max_depth=4, max_args=4) | kw))
    start, res = 0, {}
    for k, n in rows.items():
        res[k] = ids[start:start+n], labels[start:start+n]
        (root/f'basic_{k}.tsv').write_text('Source\tTarget\n' + ''.join(f'{spelled(x)}\t{y}\n' for x, y in zip(*res[k])))
        start += n
    return root, res

list_layouts = {'flat': '', 'listops-1000': 'listops-1000', 'release': 'lra_release/lra_release/listops-1000', 'once': 'lra_release/listops-1000'}

@pytest.mark.parametrize('layout', list_layouts.values(), ids=list_layouts)
def test_published_lists_round_trip_and_evaluate(tmp_path, layout):
    "TRAPS 47, 49: brackets kept, text and back exact, the evaluator reproduces every label."
    _, rows = make_lists(tmp_path/layout)
    p = lra_listops(tmp_path, **few)
    assert p.card['symbols'] == list(listops_vocab[:15])
    for split, k in dict(train='train', valid='val', test='test').items():
        s = p.split(split)
        assert [listops_decode(o) for o in s['x']] == [listops_decode(o) for o in rows[k][0]]
        assert [listops_eval(o) for o in s['x']] == s['y'].tolist() == rows[k][1].tolist()
        assert p.card['files'][split]['classes'] == np.bincount(rows[k][1], minlength=10).tolist()

def test_long_lists_at_the_published_lengths(tmp_path):
    _, rows = make_lists(tmp_path, dict(train=4, val=2, test=2), min_len=500, max_len=2000, max_depth=10, max_args=10)
    p = lra_listops(tmp_path, **few)
    assert p.split('train')['x'].lengths.tolist() == [len(o) for o in rows['train'][0]]
    longest = max(len(o) for v in rows.values() for o in v[0])
    assert lra_listops(tmp_path, max_len=longest, **few).rows == p.rows
    for kw in (dict(max_len=longest-1), dict(max_len=longest, end_token='<end>')):
        with pytest.raises(ValueError, match=rf'line \d+: {longest} tokens, more than max_len.*a cut expression has no value'): lra_listops(tmp_path, **kw, **few)
    q = lra_listops(tmp_path, max_len=longest+1, end_token='<end>', **few)
    assert q.card['symbols'][15:] == ['<end>'] and all(o[-1] == 15 and o[:-1].tolist() == r.tolist() for o, r in zip(q.split('test')['x'], rows['test'][0]))

def test_a_sample_of_labels_is_checked(tmp_path):
    at, rows = make_lists(tmp_path, dict(train=400, val=20, test=20))
    f = at/'basic_train.tsv'
    f.write_text('Source\tTarget\n' + ''.join(f'{spelled(x)}\t{(y+1) % 10 if i % 4 == 0 else y}\n' for i, (x, y) in enumerate(zip(*rows['train']))))
    for check in (1, .2):
        with pytest.raises(ValueError, match=r'basic_train.tsv, line \d+: the label is \d, but the expression'): lra_listops(at, check=check, **few)
    assert lra_listops(at, check=0, **few).card['checked'] == 0
    with pytest.raises(ValueError, match='check must lie in 0 ... 1, not 2'): lra_listops(at, check=2, **few)

def test_header_and_cut_files_of_lists(tmp_path):
    at, _ = make_lists(tmp_path)
    f = at/'basic_test.tsv'
    whole = f.read_text()
    for text, why in ((whole.split('\n', 1)[1], r"basic_test.tsv, line 1: the header is"), ('', r"basic_test.tsv, line 1: the header is"), (whole[:-9], r'basic_test.tsv, line 31: '),
                      (whole.replace(' ]', ''), r'line 2: '), (whole.replace('Source\tTarget', 'Source\tTarget\tMore'), '3 fields')):
        f.write_text(text)
        with pytest.raises(ValueError, match=why): lra_listops(at, **few)

# ---- all

readers = dict(imdb=imdb, retrieval=retrieval, lra_listops=lra_listops)
each_reader = pytest.mark.parametrize('name', readers)

@each_reader
def test_nothing_here_names_place_layout_and_command(tmp_path, name, monkeypatch):
    "TRAPS 49."
    info = sources[name].info
    for env in (None, tmp_path):
        if env: monkeypatch.setenv('LRPT_NB_SOURCES', str(env))
        for kw in ({}, few):
            with pytest.raises(FileNotFoundError) as e: readers[name](**kw | dict(progress=False))
            said = str(e.value)
            assert info.layout in said and f'$LRPT_NB_SOURCES/{name}' in said and 'folder=' in said
            assert f'{name}(download=True) fetches' in said and info.hf_name in said if info.hf_name else 'cannot be downloaded' in said
    with pytest.raises(FileNotFoundError) as e: readers[name](tmp_path, progress=False)
    assert str(tmp_path) in str(e.value) and info.layout in str(e.value)
    assert is_ready(name) == 'missing' and not list_prepared()

@each_reader
def test_no_network_is_said(name):
    info = sources[name].info
    with pytest.raises(OSError) as e: readers[name](download=True, progress=False)
    said = str(e.value)
    if info.hf_name: assert all(o in said for o in (info.hf_name, 'name resolution failed', 'Without a network', 'folder=', info.layout))
    else: assert isinstance(e.value, FileNotFoundError) and 'cannot be downloaded' in said and 'lrpt_nb.listops' in said
    assert not list_prepared()

@pytest.mark.parametrize('name, make', (('retrieval', make_pairs), ('lra_listops', make_lists)))
def test_one_unpacked_archive_serves_both(tmp_path, monkeypatch, name, make):
    monkeypatch.setenv('LRPT_NB_SOURCES', str(tmp_path/'env'))
    make(tmp_path/'env'/'lra_release'/'lra_release'/('tsv_data' if name == 'retrieval' else 'listops-1000'))
    assert is_ready(name) == 'folder' and readers[name](**few).rows['train'] == 60 and is_ready(name) == 'folder'
    monkeypatch.setattr(sources[name].info, 'rows', dict(train=60, valid=20, test=30))
    readers[name](max_len=999, progress=False); assert is_ready(name) == 'folder'
    readers[name](progress=False); assert is_ready(name) == 'prepared'

def test_folders_without_reviews_are_not_ready(tmp_path, monkeypatch):
    monkeypatch.setenv('LRPT_NB_SOURCES', str(tmp_path))
    for o in 'train', 'test': (tmp_path/'imdb'/'aclImdb'/o).mkdir(parents=True)
    assert is_ready('imdb') == 'missing'
    make_imdb(tmp_path/'b'); shutil.rmtree(tmp_path/'imdb'); (tmp_path/'b').rename(tmp_path/'imdb')
    assert is_ready('imdb') == 'folder'
    shutil.rmtree(tmp_path/'imdb'/'aclImdb'/'test'/'pos'); assert is_ready('imdb') == 'missing'

def test_a_folder_with_half_a_set_is_named_and_is_not_ready(tmp_path, monkeypatch):
    monkeypatch.setenv('LRPT_NB_SOURCES', str(tmp_path))
    at = make_pairs(tmp_path/'retrieval'/'tsv_data')
    (at/'new_aan_pairs.eval.tsv').unlink()
    assert is_ready('retrieval') == 'missing'
    with pytest.raises(FileNotFoundError, match='tsv_data lacks new_aan_pairs.eval.tsv'): retrieval(**few)

@each_reader
def test_settings_are_checked(name):
    read = readers[name]
    for kw in (dict(max_len=1), dict(max_len=2.5), dict(counts='all'), dict(end_token='$')) + ((dict(min_freq=0),) if name != 'lra_listops' else ()):
        with pytest.raises(ValueError, match=next(iter(kw))): read(**kw, progress=False)
    if name == 'retrieval':
        with pytest.raises(ValueError, match="spelling='raw' is not known; accepted: 'decoded', 'stored'"): read(spelling='raw')
    if name == 'imdb':
        with pytest.raises(ValueError, match='valid must lie between 0 and 1, not 0'): read(valid=0)

def test_prepared_sets_travel_by_path(tmp_path):
    p = retrieval(make_pairs(tmp_path), **few)
    q = pickle.loads(pickle.dumps(p))
    assert len(pickle.dumps(p)) < 2000 and all_texts(q, 'test', 'pair') == all_texts(p, 'test', 'pair')
