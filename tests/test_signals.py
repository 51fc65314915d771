"Readers of recorded signals on small folders in the layouts that the published sets have."
import io, subprocess, sys, tarfile, wave
from dataclasses import replace
import numpy as np, pytest
from lrpt_nb import archive, signals
from lrpt_nb.archive import bidmc, ucr, ucr_arrays, ucr_bundled
from lrpt_nb.signals import speech_commands
from lrpt_nb.sources import is_ready, sources

@pytest.fixture
def few(tmp_path, monkeypatch):
    "Settings of a small copy; nothing of this machine is seen and nothing reaches a network."
    def refuse(*args, **kwargs): raise OSError('a test opened a connection')
    monkeypatch.setattr('socket.socket.connect', refuse)
    monkeypatch.delenv('LRPT_NB_SOURCES', raising=False)
    monkeypatch.setenv('LRPT_NB_DATA', str(tmp_path/'data'))
    return dict(counts='any', progress=False)

def wav(x, rate=16_000):
    f = io.BytesIO()
    with wave.open(f, 'wb') as w: w.setparams((1, 2, rate, 0, 'NONE', '')); w.writeframes(x.astype('<i2').tobytes())
    return f.getvalue()

def speech(root, n=6, words=('backward', 'bed', 'zero')):
    "A folder as `speech_commands_v0.02` unpacks; samples by 'word/clip.wav'."
    rng, clips = np.random.default_rng(0), {}
    for w in words:
        for i in range(n): clips[f'{w}/{i:08x}_nohash_{i % 2}.wav'] = rng.integers(-2**15, 2**15, 160 - 7*i)
    for name, x in clips.items():
        (root/name).parent.mkdir(parents=True, exist_ok=True)
        (root/name).write_bytes(wav(x))
    (root/'_background_noise_').mkdir()
    (root/'_background_noise_'/'doing_the_dishes.wav').write_bytes(wav(np.zeros(999)))
    for o in 'README.md', 'LICENSE', '.DS_Store': (root/o).write_text('x')
    for name, ids in (('validation_list.txt', (0,)), ('testing_list.txt', (1, 4))): (root/name).write_text(''.join(f'{w}/{i:08x}_nohash_{i % 2}.wav\n' for w in words for i in ids))
    return clips

@pytest.mark.parametrize('place', ['', 'speech_commands_v0.02', 'SpeechCommands/speech_commands_v0.02'])
def test_speech_layouts(few, tmp_path, place):
    clips = speech(tmp_path/'raw'/place)
    p = speech_commands(tmp_path/'raw', **few)
    assert p.rows == dict(train=9, valid=3, test=6)
    assert p.card['classes'] == ['backward', 'bed', 'zero'] and p.card['speakers_in_two_splits'] == 0
    for split, ids in dict(train=(2, 3, 5), valid=(0,), test=(1, 4)).items():
        s = p.split(split)
        want = [(w, clips[f'{w}/{i:08x}_nohash_{i % 2}.wav']) for w in p.card['classes'] for i in ids]
        for (w, x), got, y in zip(want, s['x'], s['y'], strict=True):
            assert p.card['classes'][y] == w and got.dtype == np.int16
            np.testing.assert_array_equal(got[:, 0], x)

def test_speech_archive_and_its_download(few, tmp_path, monkeypatch):
    speech(tmp_path/'raw')
    file = tmp_path/'speech_commands_v0.02.tar.gz'
    with tarfile.open(file, 'w:gz') as tar: tar.add(tmp_path/'raw', '.')
    p, q = speech_commands(tmp_path/'raw', **few), speech_commands(file, **few)
    # a file is its own download
    monkeypatch.setattr(signals.speech_info, 'urls', (file.as_uri(),))
    d = speech_commands(download=True, home=tmp_path/'other', **few)
    for s in p.splits:
        for o in q, d: np.testing.assert_array_equal(p.split(s)['x'].values, o.split(s)['x'].values)

def test_speech_refuses(few, tmp_path):
    speech(tmp_path/'raw')
    bad = tmp_path/'raw'/'bed'/'00000002_nohash_0.wav'
    good = bad.read_bytes()
    for data, why in ((good[:-10], 'cut short or empty'), (wav(np.zeros(9), 8_000), 'at 8000 Hz; accepted: 1 of 16 bits at 16000 Hz'), (b'', 'is no sound file')):
        bad.write_bytes(data)
        with pytest.raises(ValueError, match=why) as e: speech_commands(tmp_path/'raw', **few)
        assert 'bed/00000002_nohash_0.wav' in str(e.value)
    bad.write_bytes(good)
    with pytest.raises(ValueError, match='train has 9 rows, expected 84,843 as published'): speech_commands(tmp_path/'raw', progress=False)
    with pytest.raises(ValueError, match='valid has 3 rows, expected 4'): speech_commands(tmp_path/'raw', progress=False, counts=dict(valid=4))
    (tmp_path/'raw'/'testing_list.txt').write_text((tmp_path/'raw'/'validation_list.txt').read_text())
    with pytest.raises(ValueError, match='backward/00000000_nohash_0.wav is in both lists'): speech_commands(tmp_path/'raw', **few)
    assert not [o for o in (tmp_path/'data').rglob('*.bin')]

def test_speech_of_another_version(few, tmp_path, monkeypatch):
    speech(tmp_path)
    monkeypatch.setattr(signals, 'speech_info', replace(signals.speech_info, rows=dict(train=9, valid=3, test=6)))
    with pytest.raises(ValueError, match='has 3 words, expected 35: backward, bed, zero'): speech_commands(tmp_path, progress=False)

def ts_lines(x, y): return [':'.join(','.join('?' if v != v else repr(float(v)) for v in c) for c in o.T) + f':{t}\n' for o, t in zip(x, y)]
def ts_file(path, x, y, head='@targetlabel true'):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'# comment\n@problemName toy\n@timestamps false\n{head}\n@data\n' + ''.join(ts_lines(x, y)))

def vitals(rng, patients, length=40, step=10):
    "Windows of recordings 15 windows long, targets, patients."
    x, who = [], []
    for p in range(patients):
        v = rng.integers(0, 999, (15*length, 2)).astype(np.float32)
        for t in range(0, 14*length+1, step): x.append(v[t:t+length]); who.append(p)
    return np.array(x), np.round(rng.normal(15, 3, len(x)), 3), np.array(who)

def patients_by_split(p, x, who):
    known = {o.tobytes(): w for o, w in zip(x, who)}
    return [{known[o.tobytes()] for o in p.split(s)['x']} for s in p.splits]

@pytest.mark.parametrize('seed', range(6))
def test_no_patient_in_two_splits(few, tmp_path, seed):
    "Windows missing here and there, also so many in a row that nothing overlaps, in both files."
    rng = np.random.default_rng(seed)
    x, y, who = vitals(rng, 9)
    keep = rng.random(len(x)) > .1
    at = np.flatnonzero(who == seed)[12:20]
    keep[at] = False # longer than a window
    x, y, who = x[keep], y[keep], who[keep]
    for name, there in (('TRAIN', who < 6), ('TEST', who >= 6)): ts_file(tmp_path/'raw'/f'BIDMC32RR_{name}.ts', x[there], y[there])
    for split in 'patient', 'official':
        p = bidmc('RR', tmp_path/'raw', split=split, seed=seed, valid=.2, test=.2, **few)
        sets = patients_by_split(p, x, who)
        assert sum(map(len, sets)) == len(set.union(*sets)) == 9 and all(sets)
        assert sum(p.rows.values()) == len(x) and p.card['groups_in_two_splits'] == 0
        assert split == 'patient' or sets[2] == {6, 7, 8}
    p = bidmc('RR', tmp_path/'raw', split='window', seed=seed, **few)
    assert p.card['groups_in_two_splits'] == p.card['groups'] > 1 and set(who) == patients_by_split(p, x, who)[0]

def test_windows_in_any_order(few, tmp_path):
    rng = np.random.default_rng(1)
    x, y, who = vitals(rng, 8)
    order = rng.permutation(len(x))
    ts_file(tmp_path/'BIDMC32HR_TRAIN.ts', x[order[:300]], y[order[:300]]); ts_file(tmp_path/'BIDMC32HR_TEST.ts', x[order[300:]], y[order[300:]])
    p = bidmc('HR', tmp_path, **few)
    sets = patients_by_split(p, x, who)
    assert sum(map(len, sets)) == 8 and p.card['groups'] == 8
    with pytest.raises(ValueError, match='8 recordings have windows in both files'): bidmc('HR', tmp_path, split='official', **few)

@pytest.mark.parametrize('target,column', [('RR', 3), ('HR', 1), ('SpO2', 4)])
def test_bidmc_recordings(few, tmp_path, target, column):
    rng, at = np.random.default_rng(0), tmp_path/'bidmc-ppg-and-respiration-dataset-1.0.0'/'bidmc_csv'
    at.mkdir(parents=True)
    known, numerics = {}, {}
    for p in range(1, 8):
        v, r = rng.integers(0, 999, (125*38+1, 5))/1000, rng.integers(50, 99, (39, 4)).astype(float)
        r[20, column-1] = np.nan
        known[p], numerics[p] = v, r
        (at/f'bidmc_{p:02}_Signals.csv').write_text('Time [s], RESP, PLETH, V, AVR, II\n' + ''.join(f'{k/125:g},' + ','.join(f'{o:g}' for o in row) + '\n' for k, row in enumerate(v)))
        (at/f'bidmc_{p:02}_Numerics.csv').write_text('Time [s], HR, PULSE, RESP, SpO2\n' + ''.join(f'{k},' + ','.join('' if o != o else f'{o:g}' for o in row) + '\n' for k, row in enumerate(r)))
    p = bidmc(target, tmp_path, **few)
    assert p.rows == dict(train=15, valid=3, test=3) and p.card['grouped_by'] == 'patient'
    for s in p.splits:
        for i, (x, y, g) in enumerate(zip(*(p.split(s)[k] for k in ('x', 'y', 'group')))):
            who, t = p.card['patients'][g], 3*(i % 3)
            np.testing.assert_allclose(x, known[who][125*t:125*t+4000][:, [1, 4]], rtol=1e-6)
            np.testing.assert_allclose(y, np.nanmean(numerics[who][t:t+32, column-1]), rtol=1e-6)
    with pytest.raises(ValueError, match='recordings has 7 rows, expected 53 as published'): bidmc(target, tmp_path, progress=False)
    (at/'bidmc_03_Numerics.csv').unlink()
    with pytest.raises(FileNotFoundError, match='lacks bidmc_03_Numerics.csv'): bidmc(target, tmp_path, **few)

@pytest.mark.parametrize('layout', ['', 'Toy', 'Univariate_ts/Toy', 'Multivariate_ts/Toy'])
def test_ucr_layouts(few, tmp_path, layout):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 9, 3)).astype(np.float32); x[3, 4, 1] = np.nan
    y = np.array(['10', '2', 'On']*4)
    ts_file(tmp_path/'raw'/layout/'Toy_TRAIN.ts', x[:9], y[:9], '@classLabel true On 2 10'); ts_file(tmp_path/'raw'/layout/'Toy_TEST.ts', x[9:], y[9:], '@classLabel true On 2 10')
    p, a = ucr('Toy', tmp_path/'raw', valid=.34, progress=False), ucr_arrays('Toy', tmp_path/'raw', valid=.34)
    assert p.card['classes'] == ['On', '2', '10'] and p.rows == dict(train=6, valid=3, test=3) and p.card['rows_with_missing'] == 1
    np.testing.assert_array_equal(p.split('test')['x'], x[9:]); assert a['test'][1].tolist() == y[9:].tolist()
    assert sorted(a['valid'][1]) == ['10', '2', 'On'] # one of each class
    both = np.concatenate([p.split('train')['x'], p.split('valid')['x']])
    np.testing.assert_array_equal(sorted(both[:, 0, 0]), sorted(x[:9, 0, 0]))
    labels = dict(zip(x[:9, 0, 0].tolist(), y))
    for s in 'train', 'valid': assert [labels[o] for o in p.split(s)['x'][:, 0, 0].tolist()] == [p.card['classes'][o] for o in p.split(s)['y']]

def test_what_is_missing_is_named(few, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, '_aeon_data', lambda: None)
    (tmp_path/'empty').mkdir()
    for reader, layout in ((speech_commands, 'validation_list.txt and testing_list.txt'), (lambda *o, **kw: bidmc('RR', *o, **kw), 'BIDMC32RR_TRAIN.ts and BIDMC32RR_TEST.ts'), (lambda *o, **kw: ucr('GunPoint', *o, **kw), 'GunPoint_TRAIN.ts and GunPoint_TEST.ts')):
        for args, where in (((), r'on this machine \(looked for \$LRPT_NB_SOURCES/'), ((tmp_path/'empty',), 'empty')):
            with pytest.raises(FileNotFoundError, match=f'(?s){where}.*Expected: .*{layout}.*download=True'): reader(*args, progress=False)
        with pytest.raises(FileNotFoundError, match='does not exist. Expected: '): reader(tmp_path/'nowhere', progress=False)
    assert {is_ready(o) for o in ('speech_commands', 'bidmc', 'ucr/GunPoint', 'ucr/NAME')} == {'missing'}
    assert not (tmp_path/'data').exists() or not list((tmp_path/'data').rglob('*.bin'))

def test_no_network_is_said(few, monkeypatch):
    def urlopen(*args, **kwargs): raise ConnectionError('no route to host')
    monkeypatch.setattr('urllib.request.urlopen', urlopen)
    monkeypatch.setattr(archive, '_aeon_data', lambda: None)
    for run in speech_commands, bidmc, lambda **kw: ucr('ECG200', **kw):
        with pytest.raises(OSError, match='(?s)no route to host.*Without a network.*Expected: '): run(download=True, progress=False)

def test_downloads_of_the_archives_are_kept(few, tmp_path, monkeypatch):
    import zipfile
    x, y, _ = vitals(np.random.default_rng(0), 8)
    ts_file(tmp_path/'raw'/'Toy_TRAIN.ts', x[:40], y[:40]); ts_file(tmp_path/'raw'/'Toy_TEST.ts', x[40:], y[40:])
    for s in 'TRAIN', 'TEST': (tmp_path/'raw'/f'BIDMC32RR_{s}.ts').write_bytes((tmp_path/'raw'/f'Toy_{s}.ts').read_bytes())
    with zipfile.ZipFile(tmp_path/'Toy.zip', 'w') as z: [z.write(tmp_path/'raw'/f'Toy_{s}.ts', f'Toy_{s}.ts') for s in ('TRAIN', 'TEST')]
    info = archive._ucr_info
    monkeypatch.setattr(archive, '_ucr_info', lambda name: replace(info(name), urls=((tmp_path/f'{name}.zip').as_uri(),)))
    monkeypatch.setattr(archive, '_bidmc_urls', lambda target: [(tmp_path/'raw'/f'BIDMC32RR_{s}.ts').as_uri() for s in ('TRAIN', 'TEST')])
    assert ucr('Toy', download=True, **few).rows['test'] == len(x)-40
    p = bidmc(download=True, **few)
    (tmp_path/'Toy.zip').unlink()
    assert len(ucr_arrays('Toy', download=True)['test'][0]) == len(x)-40 and sum(p.rows.values()) == np.isfinite(y).sum()

def test_prepared_once_needs_no_files(few, tmp_path):
    x, y, _ = vitals(np.random.default_rng(0), 8)
    ts_file(tmp_path/'raw'/'Toy_TRAIN.ts', x[:40], y[:40]); ts_file(tmp_path/'raw'/'Toy_TEST.ts', x[40:50], y[40:50])
    p = ucr('Toy', tmp_path/'raw', progress=False)
    assert p.card['kind'] == 'regression' and ucr('Toy', progress=False).path == p.path

def test_a_folder_that_is_named_is_read(few, tmp_path, monkeypatch):
    monkeypatch.setattr(signals, 'speech_info', replace(signals.speech_info, rows=dict(train=9, valid=3, test=6), classes=3))
    x, y, _ = vitals(np.random.default_rng(0), 8)
    for i, at in enumerate((tmp_path/'L0', tmp_path/'L1')):
        speech(at/'sc'); (at/'sc'/'bed'/'00000001_nohash_1.wav').write_bytes(wav(np.full(9, i)))
        for name, n in (('Toy', 40), ('BIDMC32RR', len(x)-6)): ts_file(at/name/f'{name}_TRAIN.ts', x[:n]+i, y[:n]); ts_file(at/name/f'{name}_TEST.ts', x[n:], y[n:])
    monkeypatch.setitem(archive.bidmc_rows, 'RR', len(x))
    for reader, sub in ((speech_commands, 'sc'), (lambda at=None, **kw: ucr('Toy', at, **kw), 'Toy'), (lambda at=None, **kw: bidmc('RR', at, **kw), 'BIDMC32RR')):
        a, b = (reader(tmp_path/f'L{i}'/sub, progress=False) for i in range(2))
        assert a.path != b.path and reader(tmp_path/'L0'/sub, progress=False).path == a.path, sub
        assert reader(progress=False).path in (a.path, b.path)

@pytest.mark.skipif(not ucr_bundled(), reason='aeon is not installed')
@pytest.mark.parametrize('name', ucr_bundled())
def test_bundled_as_aeon_reads_them(few, name):
    from aeon.datasets import load_from_ts_file
    p = ucr(name, progress=False)
    a = ucr_arrays(name)
    for part, (x, y) in dict(TEST=a['test']).items():
        want, labels = load_from_ts_file(str(archive._aeon_data()/name/f'{name}_{part}.ts'))
        for o, w in zip(x, want, strict=True): np.testing.assert_array_equal(o, w.T.astype(np.float32))
        assert np.array_equal(np.array(labels, np.float32), y) if p.card['kind'] == 'regression' else [o.lower() for o in y] == list(labels)
    want, labels = load_from_ts_file(str(archive._aeon_data()/name/f'{name}_TRAIN.ts'))
    assert sorted(o.T.astype(np.float32).tobytes() for o in want) == sorted(o.tobytes() for xs in (a['x'], a['valid'][0]) for o in xs)
    info = sources[f'ucr/{name}'].info
    assert p.rows['train'] + p.rows['valid'] == info.rows['train'] and p.rows['test'] == info.rows['test']

def test_import_loads_no_reader():
    code = "import sys, lrpt_nb.archive; print([o for o in ('aeon', 'pandas', 'datasets', 'fastai', 'torch') if o in sys.modules])"
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert set(eval(done.stdout)) <= {'torch'}, done.stdout
