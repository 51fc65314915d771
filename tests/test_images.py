"Readers of public image sets on small folders in the published layouts. TRAPS 48, 49."
import gzip, io, pickle, shutil, struct, subprocess, sys, tarfile
from pathlib import Path
import datasets, numpy as np, pytest
from PIL import Image
from conftest import ROOT
from lrpt_nb import images
from lrpt_nb.images import cifar, cifar_classes, decode_pngs, fashion_mnist, image_rows, lra_pathfinder, pathfinder_levels, read_idx, scifar, shrink
from lrpt_nb.sources import is_ready, sources
from lrpt_nb.storage import list_prepared, verify

@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    "No set of this machine is seen, nothing is fetched unless a test says so."
    monkeypatch.setenv('LRPT_NB_DATA', str(tmp_path/'home'))
    monkeypatch.delenv('LRPT_NB_SOURCES', raising=False)
    monkeypatch.setattr(images.fashion_mnist_info, 'system', ())
    def refuse(*args, **kwargs): raise AssertionError('a test asked for the network')
    monkeypatch.setattr(datasets, 'load_dataset', refuse)

def same(a, b):
    assert a.splits == b.splits == ['train', 'valid', 'test']
    for s in a.splits:
        for k in 'xy': np.testing.assert_array_equal(a.split(s)[k], b.split(s)[k])

def nothing_left(home): return not list_prepared(home) and not [o for o in home.glob('*') if o.is_dir()]

# CIFAR-10: as Python 2 pickled it, as records, as archives, from the hub

class Python2Pickler(pickle._Pickler):
    "Writes bytes as Python 2 wrote its strings."
    def save_bytes(self, o): self.write(b'T' + struct.pack('<i', len(o)) + o); self.memoize(o)
    dispatch = pickle._Pickler.dispatch | {bytes: save_bytes}

def python2_pickle(o):
    f = io.BytesIO()
    Python2Pickler(f, 2).dump(o)
    # the name that module had before NumPy 2
    return f.getvalue().replace(b'numpy._core.multiarray', b'numpy.core.multiarray')

def cifar_rows(n=20, seed=0):
    rng = np.random.default_rng(seed)
    return {b: (rng.integers(0, 256, (n, 3072), np.uint8), rng.permutation(np.arange(n) % 10).tolist()) for b in [f'data_batch_{i}' for i in range(1, 6)] + ['test_batch']}

def write_py(folder, rows):
    folder.mkdir(parents=True)
    for b, (x, y) in rows.items():
        content = {b'batch_label': b.encode(), b'labels': y, b'data': x, b'filenames': [f'{b}_{i}.png'.encode() for i in range(len(y))]}
        (folder/b).write_bytes(python2_pickle(content))
    (folder/'batches.meta').write_bytes(python2_pickle({b'label_names': [o.encode() for o in cifar_classes]})); (folder/'readme.html').write_text('')
    return folder

def write_bin(folder, rows):
    folder.mkdir(parents=True)
    for b, (x, y) in rows.items(): (folder/f'{b}.bin').write_bytes(b''.join(bytes([c]) + o.tobytes() for o, c in zip(x, y)))
    (folder/'batches.meta.txt').write_text('\n'.join(cifar_classes))
    return folder

def pack(folder, archive, order):
    with tarfile.open(archive, 'w:gz') as tar:
        for o in order(sorted(folder.iterdir())): tar.add(o, f'{folder.name}/{o.name}')
    return archive

def as_images(x): return [Image.fromarray(np.ascontiguousarray(o.reshape(3, 32, 32).transpose(1, 2, 0))) for o in x]

def hub_cifar(rows, order=(4, 3, 2, 5, 1)):
    "Another order of batches than that of the names."
    features = datasets.Features(img=datasets.Image(), label=datasets.ClassLabel(names=cifar_classes))
    def split(names): return datasets.Dataset.from_dict(dict(img=[im for b in names for im in as_images(rows[b][0])], label=[c for b in names for c in rows[b][1]]), features=features)
    return datasets.DatasetDict(train=split([f'data_batch_{i}' for i in order]), test=split(['test_batch']))

@pytest.fixture
def published(monkeypatch):
    "As if the published sets had 100 and 20 images."
    for o in images.cifar_info, images.scifar_info: monkeypatch.setattr(o, 'rows', dict(train=90, valid=10, test=20)); monkeypatch.setattr(o, 'prepared_bytes', 0)

@pytest.mark.parametrize('grayscale', (True, False))
def test_cifar_is_the_same_from_everywhere(tmp_path, monkeypatch, published, grayscale):
    rows = cifar_rows()
    py, bin_ = write_py(tmp_path/'a'/'cifar-10-batches-py', rows), write_bin(tmp_path/'b'/'cifar-10-batches-bin', rows)
    packed = [pack(py, tmp_path/'cifar-10-python.tar.gz', reversed), pack(bin_, tmp_path/'cifar-10-binary.tar.gz', sorted)]
    places = [py, py.parent, bin_, bin_.parent, *packed, tmp_path]
    made = [cifar(o, grayscale, home=tmp_path/f'home{i}', progress=False) for i, o in enumerate(places)]
    monkeypatch.setattr(datasets, 'load_dataset', lambda name: {'uoft-cs/cifar10': hub_cifar(rows)}[name])
    made.append(cifar(grayscale=grayscale, download=True, home=tmp_path/'hub', progress=False))
    for o in made[1:]: same(made[0], o)
    assert [Path(o.card['path']) for o in made[:-1]] == [py, py, bin_, bin_, *packed, packed[0]] and made[-1].card['source'] == 'Hugging Face, uoft-cs/cifar10'
    x, y = rows['test_batch']
    want = np.stack([np.asarray(o.convert('L') if grayscale else o).reshape(1024, *[3]*(not grayscale)) for o in as_images(x)])
    np.testing.assert_array_equal(made[0].split('test')['x'], want); np.testing.assert_array_equal(made[0].split('test')['y'], y)
    # every training image once, with its label
    known = {np.asarray(o.convert('L') if grayscale else o).tobytes(): c for b in list(rows)[:5] for o, c in zip(as_images(rows[b][0]), rows[b][1])}
    got = {np.array(o).tobytes(): c for s in ('train', 'valid') for o, c in zip(*(made[0].split(s)[k] for k in 'xy'))}
    assert got == known and made[0].rows == dict(train=90, valid=10, test=20)
    assert np.bincount(made[0].split('valid')['y']).tolist() == [1]*10
    verify(made[0])

def test_cifar_and_scifar_share_a_split(tmp_path):
    folder = write_py(tmp_path/'raw', cifar_rows())
    grey, colour = (f(folder, counts='any', progress=False) for f in (cifar, scifar))
    for s in grey.splits: np.testing.assert_array_equal(images.to_grey(colour.split(s)['x']), grey.split(s)['x'])
    assert (grey.card['name'], colour.card['name'], grey.card['shape'], colour.card['shape']) == ('cifar', 'scifar', [32, 32], [32, 32, 3])

def test_published_cifar_is_prepared_once(tmp_path, monkeypatch, published):
    rows = cifar_rows()
    folder = write_py(tmp_path/'sources'/'cifar'/'cifar-10-batches-py', rows)
    assert is_ready('cifar') == 'missing'
    monkeypatch.setenv('LRPT_NB_SOURCES', str(tmp_path/'sources'))
    assert is_ready('cifar') == is_ready('scifar') == 'folder'
    p = sources['cifar'].make(progress=False)
    before = (p.path/'card.json').stat().st_mtime_ns
    shutil.rmtree(folder); monkeypatch.delenv('LRPT_NB_SOURCES')
    assert is_ready('cifar') == 'prepared' and is_ready('scifar') == 'missing'
    # load_dataset refuses here, so a second download would be seen
    for o in (cifar(), cifar(download=True)): assert o.path == p.path
    same(p, cifar(write_bin(tmp_path/'bin', rows), progress=False))
    shutil.rmtree(p.path.parent); p = cifar(tmp_path/'bin', progress=False); before = (p.path/'card.json').stat().st_mtime_ns
    assert cifar().path == p.path
    assert (p.path/'card.json').stat().st_mtime_ns == before
    with pytest.raises(FileNotFoundError, match='cifar is not on this machine'): cifar(seed=1)

def test_a_part_of_the_files_is_not_ready(tmp_path, monkeypatch):
    monkeypatch.setenv('LRPT_NB_SOURCES', str(tmp_path))
    write_idx(tmp_path/'fashion_mnist'); write_py(tmp_path/'cifar'/'cifar-10-batches-py', cifar_rows())
    names = 'cifar', 'scifar', 'fashion_mnist'
    assert {is_ready(o) for o in names} == {'folder'}
    for f in (tmp_path/'fashion_mnist'/'t10k-labels-idx1-ubyte.gz', tmp_path/'cifar'/'cifar-10-batches-py'/'data_batch_3'): f.unlink()
    assert {is_ready(o) for o in names} == {'missing'}

def test_a_folder_that_is_named_is_read(tmp_path, published, published_fashion):
    for reader, write, size in (cifar, write_py, cifar_rows), (fashion_mnist, lambda at, seed: write_idx(at, seed=seed) and at, lambda seed: seed):
        a, b = (reader(write(tmp_path/f'{reader.__name__}{i}', size(seed=i)), progress=False) for i in range(2))
        assert a.path != b.path and (a.split('test')['x'] != b.split('test')['x']).any()
        assert reader(tmp_path/f'{reader.__name__}0', progress=False).path == a.path and reader(progress=False).path in (a.path, b.path)

def test_small_cifar_is_known_by_its_files(tmp_path):
    a, b = (cifar(write_py(tmp_path/str(i), cifar_rows(seed=i)), counts='any', progress=False) for i in range(2))
    assert a.path != b.path and (a.split('test')['x'] != b.split('test')['x']).any()
    shutil.move(tmp_path/'0', tmp_path/'2')
    assert cifar(tmp_path/'2', counts='any', progress=False).path == a.path

def test_pickles_run_nothing(tmp_path):
    folder, trace = write_py(tmp_path/'raw', cifar_rows()), tmp_path/'trace'
    class Touch:
        def __reduce__(self): return Path.touch, (trace,)
    class Eval:
        def __reduce__(self): return eval, (f'open({str(trace)!r}, "w")',)
    for evil in Touch(), Eval(), np.array([Touch()], dtype=object):
        for key in 'labels', 'data', 'filenames':
            x, y = cifar_rows()['data_batch_3']
            for protocol in 0, 2, 5:
                (folder/'data_batch_3').write_bytes(pickle.dumps({'data': x, 'labels': y} | {key: evil}, protocol))
                with pytest.raises(ValueError, match='data_batch_3 is no batch of CIFAR-10'): cifar(folder, counts='any', progress=False)
    assert not trace.exists() and nothing_left(tmp_path/'home')

def test_damaged_cifar_is_named(tmp_path, published):
    rows = cifar_rows()
    def fails(text, folder, **kw):
        with pytest.raises((ValueError, OSError), match=text): cifar(folder, progress=False, **kw)
        assert nothing_left(tmp_path/'home')
    py, bin_ = write_py(tmp_path/'py', rows), write_bin(tmp_path/'bin', rows)
    packed = pack(py, tmp_path/'all.tar.gz', sorted)
    (py/'data_batch_2').unlink(); fails(r'py holds data_batch_1, data_batch_3.*; expected each of data_batch_1', py)
    fails('holds data_batch_1, data_batch_3', pack(py, tmp_path/'part.tar.gz', sorted))
    (bin_/'data_batch_5.bin').write_bytes((bin_/'data_batch_5.bin').read_bytes()[:-100]); fails('data_batch_5.bin is no binary batch', bin_)
    packed.write_bytes(packed.read_bytes()[:-5000]); fails('all.tar.gz cannot be read as a whole tar archive', packed)
    fewer = write_bin(tmp_path/'fewer', rows | {'data_batch_1': (rows['data_batch_1'][0][:10], rows['data_batch_1'][1][:10])})
    fails('train has 90 images, expected 100 as published', fewer); fails('train has 90 images, expected 95', fewer, counts=dict(train=95))
    y = rows['data_batch_4'][1]
    fails('class . has 1[12] of the 100 images of train, expected 10', write_bin(tmp_path/'uneven', rows | {'data_batch_4': (rows['data_batch_4'][0], [y[0] or 1]*3 + y[3:])}))
    fails('class 3 has 100 of the 100 images of train, expected about 10', write_bin(tmp_path/'one', {b: (x, [3]*20) for b, (x, _) in rows.items()}), counts='any')
    fails(r'train has the labels \[11\], expected 0 ... 9', write_bin(tmp_path/'label', rows | {'data_batch_4': (rows['data_batch_4'][0], [11] + y[1:])}))
    (tmp_path/'empty').mkdir(); fails('cifar is not in folder=.*Expected: cifar-10-batches-py', tmp_path/'empty'); fails('does not exist. Expected: cifar-10-batches-py', tmp_path/'nowhere')
    fails("counts='al' is not known; accepted", py, counts='al'); fails('valid must lie between 0 and 1', packed.parent/'uneven', valid=0, counts='any')
    assert 'fetches 137.0 MiB as uoft-cs/cifar10' in str(pytest.raises(FileNotFoundError, cifar).value)

def test_no_network(tmp_path, monkeypatch):
    def unreachable(name): raise ConnectionError('huggingface.example is unreachable\nand a page of advice')
    monkeypatch.setattr(datasets, 'load_dataset', unreachable)
    for f, layout in (cifar, 'cifar-10-batches-py'), (scifar, 'cifar-10-batches-py'), (fashion_mnist, 'idx3-ubyte'):
        with pytest.raises(OSError, match=rf'could not be fetched .*\(ConnectionError: huggingface.example is unreachable\). Without a network.*folder= or \$LRPT_NB_SOURCES/.*{layout}'): f(download=True, progress=False)
    assert nothing_left(tmp_path/'home')

# Fashion-MNIST

def idx_bytes(a): return struct.pack(f'>HBB{a.ndim}I', 0, 8, a.ndim, *a.shape) + a.tobytes()

def write_idx(folder, n=dict(train=120, t10k=40), zipped=True, seed=0, labels=None):
    rng, made = np.random.default_rng(seed), {}
    folder.mkdir(parents=True)
    for o, k in n.items():
        made[o] = rng.integers(0, 256, (k, 28, 28), np.uint8), (rng.permutation(np.arange(k) % 10) if labels is None else np.asarray(labels[o])).astype(np.uint8)
        for kind, a in zip(('images-idx3', 'labels-idx1'), made[o]): (folder/f'{o}-{kind}-ubyte{".gz"*zipped}').write_bytes(gzip.compress(idx_bytes(a)) if zipped else idx_bytes(a))
    return made

@pytest.fixture
def published_fashion(monkeypatch):
    monkeypatch.setattr(images.fashion_mnist_info, 'rows', dict(train=110, valid=10, test=40)); monkeypatch.setattr(images.fashion_mnist_info, 'prepared_bytes', 0)

@pytest.mark.parametrize('side', (28, 14))
def test_fashion_is_the_same_from_everywhere(tmp_path, monkeypatch, published_fashion, side):
    folders = [tmp_path/'gz', tmp_path/'plain', tmp_path/'torch'/'FashionMNIST'/'raw', tmp_path/'repo'/'data'/'fashion']
    made = [write_idx(o, zipped=o.name != 'plain') for o in folders][0]
    # what lies beside a part of the files does not matter
    shutil.copy(tmp_path/'gz'/'train-images-idx3-ubyte.gz', tmp_path/'torch')
    with pytest.warns(UserWarning, match='not byte for byte the published ones'):
        sets = [fashion_mnist(o, side, home=tmp_path/f'home{i}', progress=False) for i, o in enumerate([*folders[:2], tmp_path/'torch', tmp_path/'repo'])]
    hub = {s: datasets.Dataset.from_dict(dict(image=list(map(Image.fromarray, x)), label=y.tolist()), features=datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(10)))
           for s, (x, y) in zip(('train', 'test'), made.values())}
    hub['train'] = hub['train'].shuffle(seed=3)
    monkeypatch.setattr(datasets, 'load_dataset', lambda name: {'zalando-datasets/fashion_mnist': datasets.DatasetDict(hub)}[name])
    sets.append(fashion_mnist(side=side, download=True, home=tmp_path/'hub', progress=False))
    for o in sets[1:]: same(sets[0], o)
    assert Path(sets[2].card['path']) == folders[2]
    x = made['t10k'][0].reshape(40, side, 28//side, side, 28//side).astype(float).mean((2, 4))
    np.testing.assert_array_equal(sets[0].split('test')['x'], np.floor(x + .5).reshape(40, -1)); np.testing.assert_array_equal(sets[0].split('test')['y'], made['t10k'][1])
    assert np.bincount(sets[0].split('valid')['y']).tolist() == [1]*10

def test_mnist_and_damaged_files_are_named(tmp_path, published_fashion):
    def fails(text, folder, **kw):
        with pytest.raises((ValueError, OSError), match=text): fashion_mnist(folder, progress=False, **kw)
        assert nothing_left(tmp_path/'home')
    y = np.arange(120) % 10
    y[0] = 1
    write_idx(tmp_path/'mnist', labels=dict(train=y, t10k=np.arange(40) % 10))
    fails('class 0 has 11 of the 120 images of train, expected 12. MNIST, whose files', tmp_path/'mnist')
    write_idx(tmp_path/'one', labels=dict(train=y*0, t10k=np.arange(40) % 10)); fails('class 0 has 120 of the 120', tmp_path/'one', counts='any')
    write_idx(tmp_path/'a', zipped=False)
    f = tmp_path/'a'/'t10k-images-idx3-ubyte'
    f.write_bytes(f.read_bytes()[:-1]); fails('t10k-images-idx3-ubyte has 31,359 values', tmp_path/'a')
    f.unlink(); fails('a lacks t10k-images-idx3-ubyte. Expected', tmp_path/'a')
    write_idx(tmp_path/'b', dict(train=120, t10k=30)); fails('test has 30 images, expected 40 as published', tmp_path/'b')
    shutil.copy(tmp_path/'mnist'/'train-labels-idx1-ubyte.gz', tmp_path/'b'/'t10k-labels-idx1-ubyte.gz'); fails(r'expected \(N, 28, 28\) and \(N,\)', tmp_path/'b', counts='any')
    fails('fashion_mnist is not in folder=.*Expected: {train,t10k}-images-idx3-ubyte', tmp_path)
    assert 'fetches 29.4 MiB as zalando-datasets/fashion_mnist' in str(pytest.raises(FileNotFoundError, fashion_mnist).value)

real = Path('/usr/share/datasets/fashion-mnist')
@pytest.mark.skipif(not real.is_dir(), reason="Debian's package dataset-fashion-mnist is not installed")
def test_real_fashion(tmp_path, monkeypatch):
    monkeypatch.setattr(images.fashion_mnist_info, 'system', (str(real),))
    p = fashion_mnist(progress=False)
    verify(p)
    assert p.rows == dict(train=55_000, valid=5_000, test=10_000) and p.card['published'] and len(p.card['checksums']) == 4
    for s, n in ('train', 5500), ('valid', 500), ('test', 1000): assert np.bincount(p.split(s)['y']).tolist() == [n]*10
    x, y = (read_idx(real/f'train-{o}-ubyte.gz') for o in ('images-idx3', 'labels-idx1'))
    known = {}
    for o, c in zip(x, y): known.setdefault(o.tobytes(), []).append(c)
    for s in 'train', 'valid':
        for o, c in zip(*(np.asarray(p.split(s)[k]) for k in 'xy')): known[o.tobytes()].remove(c)
    assert not any(known.values())
    in_train = {o.tobytes() for o in np.asarray(p.split('train')['x'])}
    assert not in_train & {o.tobytes() for o in np.asarray(p.split('valid')['x'])}
    half = fashion_mnist(side=14, progress=False)
    for s in p.splits:
        np.testing.assert_array_equal(half.split(s)['y'], p.split(s)['y'])
        np.testing.assert_array_equal(half.split(s)['x'][:200], shrink(np.asarray(p.split(s)['x'][:200]).reshape(-1, 28, 28), 14).reshape(-1, 196))

# Pathfinder: TRAPS 48, 49

def write_pathfinder(level, n=120, resolution=32, seed=0, per=50):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 256, (n, resolution, resolution), np.uint8), rng.permutation(np.arange(n) % 2)
    (level/'metadata').mkdir(parents=True)
    for k in range(0, n, per):
        (level/'imgs'/str(k//per)).mkdir(parents=True)
        rows = range(k, min(n, k+per))
        (level/'metadata'/f'{k//per}.npy').write_text(''.join(f'imgs/{k//per} sample_{i-k}.png {i-k} {y[i]} 1.5 14 3 0.9 35\n' for i in rows))
        for i in rows: Image.fromarray(x[i]).save(level/'imgs'/str(k//per)/f'sample_{i-k}.png')
    return x, y

def whole(p, x, y):
    known = {o.tobytes(): c for o, c in zip(x, y)}
    got = {np.array(o).tobytes(): c for s in p.splits for o, c in zip(*(p.split(s)[k] for k in 'xy'))}
    return got == known

hard = 'curv_contour_length_14'
few = dict(counts=120, progress=False)

def test_trap_48_two_folders_of_one_name(tmp_path):
    release = tmp_path/'lra_release'
    outer, inner = release/'pathfinder128'/hard, release/'lra_release'/'pathfinder128'/hard
    made = {o: write_pathfinder(o, 20, 128, seed) for seed, o in enumerate((outer, inner))}
    for i, folder in enumerate((tmp_path, release, release/'lra_release', inner, outer, outer.parent)):
        used, other = (outer, inner) if i > 3 else (inner, outer)
        with pytest.warns(UserWarning, match=f'lie in {used}, which is used, and in {other}'): p = lra_pathfinder(128, folder, counts=20, home=tmp_path/f'home{i}', progress=False)
        assert whole(p, *made[used]) and p.card['path'] == str(used) and p.card['other_copies'] == [str(other)]
    # the two are two sets, also in one home
    with pytest.warns(UserWarning): assert lra_pathfinder(128, outer, counts=20, progress=False).path.name != lra_pathfinder(128, inner, counts=20, progress=False).path.name

def test_trap_48_counts_balance_and_labels(tmp_path):
    at = tmp_path/hard
    x, y = write_pathfinder(at)
    def fails(text, **kw):
        with pytest.raises((ValueError, OSError), match=text) as e: lra_pathfinder(folder=at, **few | kw)
        assert str(at) in str(e.value) and nothing_left(tmp_path/'home')
    fails('lists 120 images, expected 200,000 as published', counts=None); fails('lists 120 images, expected 100', counts=100)
    for k in range(3): (at/'metadata'/f'{k}.npy').write_text((at/'metadata'/f'{k}.npy').read_text().replace(' 0 1.5', ' 1 1.5'))
    fails('class 0 has 0 of the 120 images of the metadata, expected about 60')
    # labels that belong to no image: one image, many times, under both
    for k in range(3): (at/'metadata'/f'{k}.npy').write_text(''.join(f'imgs/{k} sample_{i}.png {i} {i % 2} 1.5\n' for i in range(50 if k < 2 else 20)))
    for o in at.glob('imgs/*/*.png'): Image.fromarray(x[0]).save(o)
    fails('120 of 120 images occur with both labels')
    for o in at.glob('imgs/*/*.png'): Image.fromarray(x[0]*0).save(o)
    fails('have one grey value only')

def test_trap_49_absent_or_laid_out_differently(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r'lra_pathfinder is not on this machine .*Expected: pathfinder32/curv_contour_length_14/\{imgs/0.*lra_release.gz.*7.7 GiB'): lra_pathfinder()
    (tmp_path/'empty').mkdir()
    with pytest.raises(FileNotFoundError, match='lra_pathfinder is not in folder=.*empty.*Expected: pathfinder32/curv_contour_length_14'): lra_pathfinder(folder=tmp_path/'empty')
    layouts = {'a': 'lra_release/lra_release/pathfinder32', 'b': 'pathfinder/pathfinder32', 'c': 'pathfinder32', 'd': 'lra_release/pathfinder32'}
    sets = []
    for o, layout in layouts.items():
        at = tmp_path/o/layout/hard
        x, y = write_pathfinder(at)
        for i, folder in enumerate([at, *at.parents]):
            sets.append(lra_pathfinder(folder=folder, home=tmp_path/f'home-{o}{i}', **few))
            assert sets[-1].card['path'] == str(at) and sets[-1].card['other_copies'] == []
            if folder == tmp_path/o: break
    for o in sets[1:]: same(sets[0], o)
    assert whole(sets[0], x, y) and sets[0].rows == dict(train=96, valid=12, test=12)
    # the folder of sources, by either name
    for name in 'lra_pathfinder', 'lra_release':
        (tmp_path/f'sources-{name}').mkdir(); (tmp_path/f'sources-{name}'/name).symlink_to(tmp_path/'a'/'lra_release')
        monkeypatch.setenv('LRPT_NB_SOURCES', str(tmp_path/f'sources-{name}'))
        assert is_ready('lra_pathfinder', tmp_path/'nowhere') == 'folder'
        same(lra_pathfinder(home=tmp_path/f'home-{name}', **few), sets[0])
    monkeypatch.delenv('LRPT_NB_SOURCES')
    assert is_ready('lra_pathfinder', tmp_path/'nowhere') == 'missing'

def test_difficulties_resolutions_and_workers(tmp_path):
    for seed, (name, level) in enumerate(pathfinder_levels.items()):
        for r in 32, 64:
            x, y = write_pathfinder(tmp_path/f'pathfinder{r}'/level, 60, r, seed)
            sets = [lra_pathfinder(r, tmp_path, name, counts=60, home=tmp_path/f'home{n}', n_workers=n, progress=False) for n in ((1, 2) if (name, r) == ('hard', 64) else (1,))]
            assert whole(sets[0], x, y) and sets[0].split('train')['x'].shape == (48, r*r)
            for o in sets[1:]: same(sets[0], o)
    with pytest.raises(ValueError, match='difficulty=.curv. is not known; accepted: .easy'): lra_pathfinder(32, tmp_path, 'curv')
    for kw, text in (dict(seed=-1), 'seed must be an integer of at least 0'), (dict(seed=True), 'seed must be'), (dict(counts='all'), 'counts must be'), (dict(n_workers=0, counts='any', seed=3), 'n_workers must be 1 or more'):
        with pytest.raises(ValueError, match=text): lra_pathfinder(32, tmp_path, progress=False, **kw)

def test_broken_images_are_named(tmp_path):
    at = tmp_path/hard
    write_pathfinder(at)
    def fails(text, **kw):
        with pytest.raises((ValueError, OSError), match=text): lra_pathfinder(folder=at, **few, **kw)
        assert nothing_left(tmp_path/'home')
    f = at/'imgs'/'1'/'sample_7.png'
    good = f.read_bytes()
    f.write_bytes(good[:len(good)//2]); fails(rf'{f} \(\d+ bytes\) is not a whole PNG', n_workers=2)
    f.write_bytes(b''); fails(rf'{f} \(0 bytes\) is not a whole PNG')
    Image.fromarray(np.zeros((64, 64), np.uint8)).save(f); fails(f'{f} has 64 x 64 pixels, expected 32 x 32')
    f.unlink(); fails('lacks 1 of 120 listed images, first imgs/1/sample_7.png')
    f.write_bytes(good); (at/'imgs'/'1'/'not_listed.png').write_bytes(good)
    assert lra_pathfinder(folder=at, **few).card['not_listed'] == 1

def test_the_empty_image_of_the_release(tmp_path):
    "imgs/0/sample_172.png of pathfinder32/curv_baseline has no bytes in the archive itself."
    x, y = write_pathfinder(tmp_path/'curv_baseline', 300, per=200)
    (tmp_path/'curv_baseline'/'imgs'/'0'/'sample_172.png').write_bytes(b'')
    p = lra_pathfinder(32, tmp_path, 'easy', counts=300, progress=False)
    assert p.card['skipped'] == ['imgs/0/sample_172.png'] and p.rows == dict(train=241, valid=29, test=29) and whole(p, np.delete(x, 172, 0), np.delete(y, 172))
    write_pathfinder(tmp_path/hard, 300, per=200)
    (tmp_path/hard/'imgs'/'0'/'sample_172.png').write_bytes(b'')
    with pytest.raises(ValueError, match='sample_172.png .0 bytes. is not a whole PNG'): lra_pathfinder(32, tmp_path, counts=300, progress=False)

def test_split_is_random_and_seeded(tmp_path):
    write_pathfinder(tmp_path/hard)
    a, b, c = (lra_pathfinder(folder=tmp_path, seed=s, home=tmp_path/h, **few).split('test')['x'] for s, h in ((0, 'h1'), (0, 'h2'), (1, 'h1')))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()
    # rows are not those of the end or the beginning of the list
    names, _, _ = images.pathfinder_rows(tmp_path/hard)
    every = decode_pngs([tmp_path/hard/o for o in names], 32)
    at = [int(np.flatnonzero((every == o).all(1))[0]) for o in a]
    assert at == sorted(at) and at not in (list(range(12)), list(range(108, 120)))

def test_rows_train(tmp_path):
    "What `image_rows` gives is what `seq_dls` takes."
    from lrpt_nb.data import seq_dls
    write_pathfinder(tmp_path/hard)
    dls = seq_dls(**image_rows(lra_pathfinder(folder=tmp_path, **few)), bs=8)
    x, y = dls.one_batch()
    assert x.shape == (8, 1024, 1) and x.is_floating_point() and list(dls.vocab) == ['apart', 'joined'] and [len(o.dataset) for o in dls.loaders] == [96, 12, 12]

def test_light_import():
    "The module itself needs neither `datasets` nor PIL."
    code = "import sys, lrpt_nb.images; print([o for o in ('datasets', 'PIL', 'pandas', 'fastai') if o in sys.modules])"
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() == '[]'
