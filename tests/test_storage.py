"Prepared data where it goes wrong: killed writers, full and read-only disks, several processes, other formats, workers that are spawned."
import contextlib, errno, hashlib, json, multiprocessing, os, pickle, shutil, signal, subprocess, sys, tempfile, threading, time, warnings
from pathlib import Path
import numpy as np
import pytest
from lrpt_nb import storage
from lrpt_nb.storage import FORMAT, Prepared, Ragged, Writer, list_prepared, prepare, remove_prepared, verify

def quiet(name, settings, make, home, **kw): return prepare(name, settings, make, home=home, progress=False, **kw)

def numbers(seed=0, n=40):
    "Blocks of every kind of column, and a `make` that writes them."
    rng = np.random.default_rng(seed)
    blocks = [(s, dict(x=rng.integers(0, 256, (k, 7), np.uint8), u=[rng.normal(size=(m, 2)).astype(np.float32) for m in rng.integers(1, 9, k)],
                       y=rng.integers(0, 3, k).astype(np.int64), ok=rng.random(k) < .5)) for s, k in (('train', n), ('valid', 3), ('train', 1), ('test', 2))]
    def make(w):
        for s, cols in blocks: w.add(s, **cols)
    return blocks, make

def same(p, blocks):
    "The set holds exactly the rows of `blocks`, in their order."
    for s in {s for s, _ in blocks}:
        got = p.split(s)
        for k in ('x', 'y', 'ok'):
            want = np.concatenate([c[k] for b, c in blocks if b == s])
            np.testing.assert_array_equal(got[k], want)
            assert got[k].dtype == want.dtype
        rows = [o for b, c in blocks if b == s for o in c['u']]
        assert len(got['u']) == len(rows) and got['u'].dtype == rows[0].dtype
        for a, b in zip(got['u'], rows): np.testing.assert_array_equal(a, b)

def left(home): return sorted(o.name for o in Path(home).iterdir() if not o.name.endswith('.lock'))

def python(code, *args, **kw): return subprocess.Popen([sys.executable, '-c', code, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw)

def until(done, seconds=60):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, 'waited in vain'
        time.sleep(.02)

# --- content

def test_blocks_come_back_whole(tmp_path):
    blocks, make = numbers()
    p = quiet('a', {}, make, tmp_path)
    same(p, blocks)
    assert verify(p) == p.n_bytes == sum(o.stat().st_size for o in p.path.glob('*.bin'))
    assert left(tmp_path) == [p.path.name]

def test_large_blocks_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, 'BLOCK', 64)
    blocks, make = numbers(1, 300)
    same(quiet('a', {}, make, tmp_path), blocks)

def test_a_file_is_plain_numbers_with_its_own_checksum(tmp_path):
    blocks, make = numbers()
    p = quiet('a', {}, make, tmp_path)
    x = np.concatenate([c['x'] for s, c in blocks if s == 'train'])
    data = (p.path/'train.x.bin').read_bytes()
    assert data == x.tobytes()
    assert p.card['splits']['train']['columns']['x']['files']['train.x.bin']['sha256'] == hashlib.sha256(data).hexdigest()

@pytest.mark.parametrize('order', ['C', 'F', 'swapped', 'strided'])
def test_memory_layout_of_the_input_does_not_matter(tmp_path, order):
    a = np.arange(60, dtype=np.int32).reshape(10, 6)
    given = dict(C=a, F=np.asfortranarray(a), swapped=a.astype('>i4'), strided=np.repeat(a, 2, 1)[:, ::2])[order]
    got = quiet('a', {}, lambda w: (w.add('train', x=given[:4]), w.add('train', x=given[4:])), tmp_path).split('train')['x']
    np.testing.assert_array_equal(got, a)
    assert got.dtype == np.int32

def test_ragged_rows_of_length_one_and_none(tmp_path):
    rows = [np.array([i], np.uint16) for i in range(5)] + [np.array([], np.uint16), np.arange(9, dtype=np.uint16)]
    p = quiet('a', {}, lambda w: (w.add('train', x=rows), w.add('valid', x=rows[:1]), w.add('test', x=rows[5:6])), tmp_path)
    for s, want in (('train', rows), ('valid', rows[:1]), ('test', rows[5:6])):
        got = p.split(s)['x']
        assert isinstance(got, Ragged) and got.lengths.tolist() == [len(o) for o in want] and got.lengths.dtype == np.int64
        for a, b in zip(got, want, strict=True): np.testing.assert_array_equal(a, b)
        assert got.dtype == np.uint16
    # one ragged column can be handed on to another set
    again = quiet('b', {}, lambda w: w.add('train', x=p.split('train')['x']), tmp_path)
    assert [o.tolist() for o in again.split('train')['x']] == [o.tolist() for o in rows]

def test_a_split_without_rows(tmp_path):
    p = quiet('a', {}, lambda w: (w.add('train', x=np.ones((2, 3))), w.add('test', x=np.ones((0, 3)))), tmp_path)
    assert p.split('test')['x'].shape == (0, 3) and p.rows == dict(train=2, test=0)
    with pytest.raises(ValueError, match='read-only'): p.split('test')['x'][:] = 1
    pickle.loads(pickle.dumps(p.split('test')))

def test_torch_tensors_are_rows_too(tmp_path):
    import torch
    x = torch.arange(12.).reshape(4, 3)
    p = quiet('a', {}, lambda w: w.add('train', x=x, u=[x[0], x[1, :2], x[2, :1], x[3]]), tmp_path)
    np.testing.assert_array_equal(p.split('train')['x'], x.numpy())
    assert [len(o) for o in p.split('train')['u']] == [3, 2, 1, 3]

def test_maps_are_read_only(tmp_path):
    blocks, make = numbers()
    p = quiet('a', {}, make, tmp_path)
    s = p.split('train')
    for a in (s['x'], s['u'][0], s['u'].values, s['u'].starts, s['x'][2]):
        with pytest.raises(ValueError, match='read-only'): a[...] = 0
        with pytest.raises(ValueError): a.flags.writeable = True
    same(p, blocks)

# --- found again

def test_settings_decide(tmp_path):
    calls = []
    def make(w): calls.append(1); w.add('train', x=np.full((2, 2), len(calls)))
    a = quiet('s', dict(n=1, sizes=(2, 3), f=.1), make, tmp_path)
    for again in (dict(f=.1, sizes=[2, 3], n=1), dict(n=np.int64(1), sizes=(2, 3), f=np.float64(.1))):
        assert quiet('s', again, make, tmp_path).path == a.path
    assert len(calls) == 1
    others = [quiet('s', o, make, tmp_path).path for o in (dict(n=2, sizes=(2, 3), f=.1), dict(n=1, sizes=(2, 3)), dict(n=1, sizes=(3, 2), f=.1), {})] + [quiet('t', dict(n=1, sizes=(2, 3), f=.1), make, tmp_path).path]
    assert len({a.path, *others}) == 6 and len(calls) == 6
    assert a.split('train')['x'][0, 0] == 1

@pytest.mark.parametrize('settings, text', [(dict(f=print), r"settings\['f'\] is <built-in"), (dict(a=dict(b=[1, np.ones(2)])), r"settings\['a'\]\['b'\]\[1\] is array"),
    (dict(p=Path('x')), r"settings\['p'\] is .*Path"), ({3: 1}, 'settings has the key 3'), (dict(v=float('inf')), r"settings\['v'\] is inf")])
def test_settings_that_are_not_json_are_named(tmp_path, settings, text):
    with pytest.raises(TypeError, match=text): quiet('s', settings, numbers()[1], tmp_path/'home')
    assert not (tmp_path/'home').exists()

def test_unknown_split_is_named(tmp_path):
    p = quiet('a', {}, numbers()[1], tmp_path)
    with pytest.raises(ValueError, match="split='validation' is not known; accepted: 'train', 'valid', 'test'"): p.split('validation')

def test_columns_of_two_generations_do_not_meet(tmp_path):
    p = quiet('a', {}, lambda w: w.add('train', x=np.ones((2, 3)), y=np.ones(2)), tmp_path)
    opened = Prepared(p.path)
    assert opened.rows == dict(train=2)
    remove_prepared(p)
    quiet('a', {}, lambda w: w.add('train', x=np.zeros((2, 3)), y=np.zeros(2)), tmp_path)
    with pytest.raises(ValueError, match='was made anew with other content since it was opened; open it again'): opened.split('train')
    assert not Prepared(p.path).split('train')['x'].any()

# --- interrupted

@pytest.mark.parametrize('error', [KeyError('row 4'), KeyboardInterrupt()])
def test_a_make_that_raises_leaves_nothing(tmp_path, error):
    def make(w):
        w.add('train', x=np.ones((3, 2)), u=[np.ones(1)]*3)
        raise error
    with pytest.raises(type(error)): quiet('a', {}, make, tmp_path)
    assert left(tmp_path) == []
    blocks, make = numbers()
    same(quiet('a', {}, make, tmp_path), blocks)

def test_rows_that_do_not_match_leave_nothing(tmp_path):
    def make(w): w.add('train', x=np.ones((3, 2)), y=np.ones(3)); w.add('train', x=np.ones((1, 2)))
    with pytest.raises(ValueError, match="split 'train': columns have unequal numbers of rows: x 4, y 3"): quiet('a', {}, make, tmp_path)
    assert left(tmp_path) == []

killed = '''
import sys, time, numpy as np
from pathlib import Path
from lrpt_nb.storage import prepare
def make(w):
    w.add('train', x=np.ones((1000, 1000)), u=[np.ones(3)]*1000)
    Path(sys.argv[2]).touch()
    time.sleep(120)
prepare(sys.argv[3], {}, make, home=sys.argv[1], progress=False)
'''

def test_a_killed_writer_leaves_a_temporary_folder_which_the_next_removes(tmp_path):
    home = tmp_path/'home'
    ps = [python(killed, home, tmp_path/f'wrote-{name}', name) for name in ('a', 'b')]
    until(lambda: all((tmp_path/f'wrote-{name}').exists() for name in ('a', 'b')))
    for p in ps: os.kill(p.pid, signal.SIGKILL)
    for p in ps: p.communicate()
    halves = left(home)
    assert len(halves) == 2 and all(o.startswith('.') for o in halves) # never under the final name
    assert any((home/o/'train.x.bin').stat().st_size for o in halves)
    assert list_prepared(home) == []
    blocks, make = numbers()
    p = quiet('a', {}, make, home)
    same(p, blocks)
    assert left(home) == [p.path.name] # the other set's half is nobody's any more, and gone too

def killed_after(n, home, make):
    "In a process of its own: `prepare`, killed where it syncs or renames for the n-th time. Whether it was."
    pid = os.fork()
    if pid: return os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    calls = [n]
    def deadly(f):
        def inner(*args, **kw):
            if not calls[0]: os.kill(os.getpid(), signal.SIGKILL)
            calls[0] -= 1
            return f(*args, **kw)
        return inner
    os.fsync, os.replace = deadly(os.fsync), deadly(os.replace)
    try: quiet('a', {}, make, home)
    finally: os._exit(0)

@pytest.mark.skipif(not hasattr(os, 'fork'), reason='no fork here')
@pytest.mark.filterwarnings('ignore:.*fork:DeprecationWarning')
@pytest.mark.parametrize('there', ['nothing', 'damaged'])
def test_killed_at_every_step_of_finishing(tmp_path, there):
    "Whatever the last call was that reached the disk, the final name has all or nothing, and the next `prepare` ends well."
    blocks, make = numbers()
    for n in range(60):
        home = tmp_path/f'h{n}'
        if there == 'damaged': next(quiet('a', {}, make, home).path.glob('train.x.bin')).write_bytes(b'') # to be moved aside
        was_killed = killed_after(n, home, make)
        found = list_prepared(home)
        assert len(found) <= 1 and (was_killed or found)
        for o in found:
            if not o['problem']: verify(o['path']); same(Prepared(o['path']), blocks)
            else: assert there == 'damaged' and 'train.x.bin has 0 bytes' in o['problem']
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            p = quiet('a', {}, make, home)
        same(p, blocks)
        assert p.path.name in left(home)
        # one more with other settings clears what a kill after the last rename may leave
        quiet('a', dict(n=1), make, home)
        assert len(left(home)) == 2 and not any(o.startswith('.') for o in left(home))
        if not was_killed: break
    assert 15 < n < 59

@pytest.mark.parametrize('harm', ['missing', 'short', 'long', 'no card', 'half a card', 'old format', 'no format', 'a list', 'another set', 'a file'])
def test_what_is_not_whole_is_named_and_made_anew(tmp_path, harm):
    blocks, make = numbers()
    p = quiet('a', {}, make, tmp_path)
    file, card = p.path/'train.u.starts.bin', p.path/'card.json'
    data = json.loads(card.read_text())
    if harm == 'missing': file.unlink(); text = 'train.u.starts.bin is missing'
    elif harm == 'short': file.write_bytes(file.read_bytes()[:-8]); text = 'train.u.starts.bin has 328 bytes instead of 336'
    elif harm == 'long': file.write_bytes(file.read_bytes()+b'1'); text = 'train.u.starts.bin has 337 bytes instead of 336'
    elif harm == 'no card': card.unlink(); text = 'no card.json'
    elif harm == 'half a card': card.write_text(card.read_text()[:100]); text = 'card.json is not whole'
    elif harm == 'old format':
        # an older version that was interrupted: its card is there, some of its files are not
        card.write_text(json.dumps(data | dict(format=FORMAT-1))); file.unlink(); text = f'has format {FORMAT-1}, this version reads {FORMAT}'
    elif harm == 'no format': card.write_text('{}'); text = 'has format None'
    elif harm == 'a list': card.write_text('[]'); text = 'has format None'
    elif harm == 'another set':
        data['settings'] = dict(n=2)
        card.write_text(json.dumps(data | dict(checksum=storage._card_sum(data)))); text = "holds 'a' with the settings {'n': 2}"
    elif harm == 'a file': shutil.rmtree(p.path); p.path.write_text('?'); text = 'no card.json'
    if harm != 'another set':
        assert text in list_prepared(tmp_path)[0]['problem']
        with pytest.raises((ValueError, FileNotFoundError)) as e: verify(p.path)
        assert text in str(e.value) and str(p.path) in str(e.value)
    with pytest.warns(UserWarning) as w: same(quiet('a', {}, make, tmp_path), blocks)
    assert text in str(w[0].message) and str(p.path) in str(w[0].message) and w[0].filename == __file__
    assert left(tmp_path) == [p.path.name]

@pytest.mark.parametrize('name', ['train.x.bin', 'test.y.bin', 'train.u.bin', 'train.u.starts.bin', 'valid.ok.bin'])
def test_one_changed_bit_is_found(tmp_path, name):
    p = quiet('a', {}, numbers()[1], tmp_path)
    data = bytearray((p.path/name).read_bytes())
    data[len(data)//2] ^= 4
    (p.path/name).write_bytes(data)
    with pytest.raises(ValueError, match=name.replace('.', r'\.')): verify(Prepared(p.path))
    (p.path/name).write_bytes(bytes(o ^ 4 if i == len(data)//2 else o for i, o in enumerate(data)))
    verify(p)

def test_everything_is_on_the_disk_before_the_rename(tmp_path, monkeypatch):
    "Every file and the folder were synced, in their final length, when the folder got its name."
    synced, replace, fsync = {}, os.replace, os.fsync
    def note(fd):
        st = os.fstat(fd)
        synced[st.st_ino] = st.st_size
        fsync(fd)
    def check(a, b):
        if not Path(b).name.startswith('.'):
            a = Path(a)
            files = list(a.iterdir())
            assert len(files) > 10 and a.stat().st_ino in synced
            for o in files: assert synced.get(o.stat().st_ino) == o.stat().st_size, o.name
            synced['checked'] = 1
        replace(a, b)
    monkeypatch.setattr(os, 'fsync', note); monkeypatch.setattr(os, 'replace', check)
    quiet('a', {}, numbers()[1], tmp_path)
    assert synced['checked'] and tmp_path.stat().st_ino in synced

# --- several processes

racing = '''
import os, sys, time, numpy as np
from pathlib import Path
from lrpt_nb.storage import prepare
home, log, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
def make(w):
    (log/f'make-{os.getpid()}').touch()
    end = time.time() + 60 # until the other is at the lock or about to be
    while len(list(log.glob('start-*'))) < 2 and time.time() < end: time.sleep(.01)
    for _ in range(3): w.add('train', x=np.arange(40).reshape(4, 10)); time.sleep(.7) # longer than one waits in silence
(log/f'start-{os.getpid()}').touch()
p = prepare(name, {}, make, home=home)
print(p.split('train')['x'].sum())
'''

def test_two_processes_prepare_once(tmp_path):
    (tmp_path/'log').mkdir()
    ps = [python(racing, tmp_path/'home', tmp_path/'log', 'a') for _ in range(2)]
    outs = [p.communicate(timeout=120) for p in ps]
    assert [o.strip() for o, _ in outs] == [str(3*780)]*2, outs
    assert sorted('waiting for the process that is preparing it' in e for _, e in outs) == [False, True]
    assert len(list((tmp_path/'log').glob('make-*'))) == 1 and len(list((tmp_path/'log').glob('start-*'))) == 2

def test_threads_prepare_once(tmp_path):
    calls, got = [], []
    def make(w): calls.append(1); time.sleep(.2); w.add('train', x=np.ones((2, 2)))
    ts = [threading.Thread(target=lambda: got.append(quiet('a', {}, make, tmp_path).path)) for _ in range(4)]
    for t in ts: t.start()
    for t in ts: t.join()
    assert len(calls) == 1 and len(set(got)) == 1 and len(got) == 4

def test_a_set_may_be_made_from_another(tmp_path):
    blocks, make = numbers()
    def second(w): w.add('train', x=quiet('a', {}, make, tmp_path).split('valid')['x'])
    assert quiet('b', {}, second, tmp_path).rows == dict(train=3)

def total(p, out): out.put((int(p.split('train')['x'].sum()), [int(o.sum()*100) for o in p.split('train')['u']][:3]))
def total_of_maps(cols, out): out.put((int(cols['x'].sum()), [int(o.sum()*100) for o in cols['u']][:3]))

@pytest.mark.parametrize('what', ['set', 'maps'])
def test_spawned_processes_open_their_own(tmp_path, monkeypatch, what):
    blocks, make = numbers(n=5000)
    monkeypatch.chdir(tmp_path)
    p = Prepared(os.path.relpath(quiet('a', {}, make, 'relative').path))
    cols = p.split('train')
    assert len(pickle.dumps(p)) < 2000 and len(pickle.dumps(cols)) < 4000 < p.n_bytes
    monkeypatch.chdir('/') # the path must hold wherever the other process is
    ctx = multiprocessing.get_context('spawn')
    out = ctx.Queue()
    worker = ctx.Process(target=total if what == 'set' else total_of_maps, args=(p if what == 'set' else cols, out))
    worker.start()
    got = out.get(timeout=120)
    worker.join()
    assert got == (int(cols['x'].sum()), [int(o.sum()*100) for o in cols['u']][:3])

reading = '''
import os, sys, time, numpy as np
from pathlib import Path
from lrpt_nb.storage import Prepared, prepare
home, stop = sys.argv[1], Path(sys.argv[2])
def did(what): (stop.parent/f'{what}-{os.getpid()}').touch()
def make(w): w.add('train', x=np.full((2000, 100), 7, np.uint8), u=[np.full(3, 7)]*2000)
n = gone = 0
opened = prepare('a', {}, make, home=home, progress=False).split('train')
did('opened')
while not stop.exists():
    try: s = prepare('a', {}, make, home=home, progress=False).split('train')
    except FileNotFoundError as e: # removed between the two calls: said, never half read
        assert 'prepared set' in str(e), e
        gone += 1
        continue
    assert s['x'].shape == (2000, 100) and (s['x'] == 7).all() and len(s['u']) == 2000 and (s['u'].values == 7).all()
    n += 1
    did('read')
assert (opened['x'] == 7).all() # opened before everything that was removed since
print(n, gone)
'''

def test_readers_while_another_removes(tmp_path):
    home, stop = tmp_path/'home', tmp_path/'stop'
    ps = [python(reading, home, stop) for _ in range(2)]
    removed, end = 0, time.monotonic() + 120
    def both(what): return len(list(tmp_path.glob(f'{what}-*'))) == 2
    while not both('opened') and time.monotonic() < end: time.sleep(.01)
    while (removed < 15 or not both('read')) and time.monotonic() < end:
        for o in list_prepared(home): removed += len(remove_prepared(Prepared(o['path'])))
        time.sleep(.01)
    stop.touch()
    for p in ps:
        out, err = p.communicate(timeout=60)
        assert p.returncode == 0, err
        assert int(out.split()[0]) > 0
    assert removed >= 15
    assert all(not o.startswith('.') for o in left(home))

# --- places that cannot be written

def full(free): return lambda at: shutil._ntuple_diskusage(2**40, 2**40-free, free)

def test_a_full_disk_is_named_before_and_while_writing(tmp_path, monkeypatch):
    blocks, make = numbers()
    home = tmp_path/'home'
    monkeypatch.setattr(shutil, 'disk_usage', full(2**30))
    with pytest.raises(OSError, match=r"home has 1\.0 GiB free, 2\.0 GiB are needed; make room, or choose another place with home= or \$LRPT_NB_DATA") as e: quiet('a', {}, make, home, n_bytes=2**31-2**24)
    assert e.value.errno == errno.ENOSPC
    def slow(w):
        w.add('train', x=np.ones((2, 3)))
        monkeypatch.setattr(shutil, 'disk_usage', full(1000))
        w.add('train', x=np.ones((2, 3)))
    with pytest.raises(OSError, match='home has 1000 bytes free, 16.0 MiB are needed'): quiet('a', {}, slow, home)
    assert left(home) == []
    monkeypatch.undo()
    same(quiet('a', {}, make, home), blocks)

def test_a_disk_that_fills_after_all_is_named(tmp_path, monkeypatch):
    "What the system itself says names no file; ours does."
    def fsync(fd): raise OSError(errno.ENOSPC, 'No space left on device')
    monkeypatch.setattr(os, 'fsync', fsync)
    with pytest.raises(OSError, match=rf'No space left on device: a in {tmp_path}; make room') as e: quiet('a', {}, numbers()[1], tmp_path)
    assert e.value.errno == errno.ENOSPC and left(tmp_path) == []

@contextlib.contextmanager
def nobody():
    "Without the superuser's rights, for whom nothing is read-only."
    root = os.geteuid() == 0
    if root: os.seteuid(65534)
    try: yield
    finally:
        if root: os.seteuid(0)

@pytest.fixture
def readonly():
    "A folder that anybody may read and nobody may write."
    home = Path(tempfile.mkdtemp())
    home.chmod(0o755)
    yield home
    home.chmod(0o755)
    shutil.rmtree(home)

@pytest.mark.skipif(not hasattr(os, 'seteuid'), reason='no users to change to')
def test_a_read_only_home_is_named_and_can_be_read(readonly):
    blocks, make = numbers()
    p = quiet('a', {}, make, readonly)
    readonly.chmod(0o555)
    with nobody():
        same(quiet('a', {}, make, readonly), blocks) # found: nothing is written, no lock is taken
        for home in (readonly, readonly/'below'):
            with pytest.raises(PermissionError) as e: quiet('b', {}, make, home)
            assert f"home='{home}' cannot be written (Permission denied); choose another place" in str(e.value)
        with pytest.raises(PermissionError, match='cannot be written'): remove_prepared('a', readonly)
    assert left(readonly) == [p.path.name]

def test_a_home_that_is_a_file_is_named(tmp_path):
    (tmp_path/'file').write_text('')
    for home in (tmp_path/'file', tmp_path/'file'/'below'):
        with pytest.raises(OSError, match=f"home='{home}' cannot be written"): quiet('a', {}, numbers()[1], home)

def test_nothing_is_made_before_something_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv('LRPT_NB_DATA', str(tmp_path/'deep'/'home'))
    assert list_prepared() == []
    with pytest.raises(ValueError, match="what='a' is not known"): remove_prepared('a')
    assert list(tmp_path.iterdir()) == []
    p = prepare('a', {}, numbers()[1], progress=False)
    assert p.path.parent == tmp_path/'deep'/'home'

def test_remove_touches_prepared_sets_only(tmp_path):
    (tmp_path/'precious').mkdir()
    (tmp_path/'precious'/'thesis.tex').write_text('x')
    with pytest.raises(ValueError, match='precious is no folder that prepare made'): remove_prepared(Prepared(tmp_path/'precious'))
    a, b, c = (quiet(n, s, numbers()[1], tmp_path) for n, s in (('a', {}), ('a', dict(n=1)), ('ab', {})))
    assert sorted(remove_prepared('a', tmp_path)) == sorted([a.path, b.path])
    assert left(tmp_path) == [c.path.name, 'precious'] and (tmp_path/'precious'/'thesis.tex').exists()

# --- large

def test_a_set_larger_than_what_may_be_held(tmp_path):
    "Written in blocks and read by rows, a set costs far less memory than it is large."
    code = '''
import resource, sys, numpy as np
from lrpt_nb.storage import prepare
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
N, L, n = 40_000, 4096, 500
block = np.ones((n, L), np.uint8)
def make(w):
    for i in range(0, N, n): w.add('train', x=block, u=list(block[:, :L//2]), y=np.arange(i, i+n))
def warm(w): w.add('train', x=block, u=list(block[:, :L//2]), y=np.arange(n))
prepare('warm', {}, warm, home=sys.argv[1], progress=False)
before = peak()
p = prepare('large', {}, make, home=sys.argv[1], progress=False)
print(p.n_bytes, (peak()-before)*(1 if sys.platform == 'darwin' else 1024))
'''
    p = python(code, tmp_path)
    out, err = p.communicate(timeout=120)
    assert p.returncode == 0, err
    size, grown = map(int, out.split())
    assert size > 40_000*4096*1.5 and grown < size/4

# --- a script without a main part under `if __name__ == '__main__':`

def run_script(tmp_path, text, seconds=240):
    "Run a script that has no such part; what it left behind, its output, its complaints."
    (tmp_path/'script.py').write_text(f'home = {str(tmp_path/"home")!r}\n{text}')
    done = subprocess.run([sys.executable, str(tmp_path/'script.py')], capture_output=True, text=True, timeout=seconds)
    return done.returncode, done.stdout, done.stderr

rows_of = {'listops': "n_train=300, n_valid=20, n_test=20, min_len=5, max_len=40", 'pathfinder': "n_train=70, n_valid=6, n_test=6"}

@pytest.mark.parametrize('name', rows_of)
def test_a_script_that_asks_for_workers_is_told_of_its_main_part(tmp_path, name):
    code, _, err = run_script(tmp_path, f"from lrpt_nb.tasks import load_task\nload_task({name!r}, home=home, n_workers=2, {rows_of[name]})")
    assert code and "RuntimeError: a process that should make rows ended; a script needs its main part under `if __name__ == '__main__':` for n_workers=2" in err, err
    assert "runs the script from its top" in err, err
    assert left(tmp_path/'home') == []

@pytest.mark.parametrize('name', rows_of)
def test_a_script_that_asked_for_none_gets_the_same_rows_and_one_warning(tmp_path, name):
    from lrpt_nb.tasks import load_task
    code, out, err = run_script(tmp_path, "from lrpt_nb import blocks, sets\nfrom lrpt_nb.tasks import load_task\nsets.few_positions, blocks.n_cores = 0, lambda: 2\n"
        f"print(load_task({name!r}, home=home, {rows_of[name]}).info()['fingerprint'])")
    assert not code and err.count('goes on alone and slower') == 1, err
    assert out.strip() == load_task(name, home=tmp_path/'here', n_workers=1, **eval(f'dict({rows_of[name]})')).info()['fingerprint']
