"Tables to sequences: against loops over rows, over the dtypes pandas has, and the errors a table earns."
import datetime, itertools, pickle, subprocess, sys, warnings
from decimal import Decimal
from types import SimpleNamespace
import numpy as np
import pytest
import torch
from lrpt_nb.frames import Table, is_table, read_table, rows_to_frame
from lrpt_nb.prep import read_rows

pd, pa = pytest.importorskip('pandas'), pytest.importorskip('pyarrow')
from datasets import Array2D, Array3D, ClassLabel, Dataset, DatasetDict, Features, LargeList, List, Value, concatenate_datasets

def same(a, b): return len(a) == len(b) and all(np.array_equal(p, q, equal_nan=True) for p, q in zip(a, b))
def dense(x): return read_rows(x if isinstance(x, np.ndarray) else list(x)) # as the data layer sees it
def same_rows(a, b):
    a, b = dense(a), dense(b)
    return np.array_equal(a.x, b.x, equal_nan=a.symbols is None) and a.symbols == b.symbols and (a.lengths is None) == (b.lengths is None) and (a.lengths is None or (a.lengths == b.lengths).all())

def make(seed=0, n=30, most=9, C=3):
    "Random recordings and the long table that holds them."
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, most, n)
    ids = rng.permutation([f'r{i}' for i in range(n)])
    x = [np.where(rng.random((k, C)) < .2, np.nan, rng.normal(size=(k, C))) for k in counts]
    t = [np.cumsum(rng.integers(1, 5, k))/4 for k in counts]
    y, group = rng.integers(0, 3, n), rng.integers(0, 4, n)
    frame = pd.DataFrame(np.concatenate(x), columns=list('abc')[:C]).assign(rec=np.repeat(ids, counts), t=np.concatenate(t), y=np.repeat(y, counts), site=np.repeat(group, counts))
    return SimpleNamespace(x=x, t=[o-o[0] for o in t], y=y, group=group, ids=ids, counts=counts, frame=frame)

# layouts

@pytest.mark.parametrize('seed', range(4))
def test_lines_in_any_order(seed):
    d = make(seed)
    f = d.frame.sample(frac=1, random_state=seed)
    t = read_table(f, y='y', row='rec', times='t', groups='site')
    where = {o: i for i, o in enumerate(d.ids)}
    order = [where[o] for o in dict.fromkeys(f.rec)] # first appearance
    assert list(t.row_names) == [d.ids[i] for i in order] and t.channels == ['a', 'b', 'c']
    assert same(t.x, [d.x[i] for i in order]) and same(t.times, [d.t[i] for i in order])
    assert t.y.tolist() == d.y[order].tolist() and t.groups.tolist() == d.group[order].tolist()
    assert sorted(np.concatenate(t.lines)) == list(range(len(f)))
    assert all((f.rec.iloc[o] == name).all() for o, name in zip(t.lines, t.row_names))

@pytest.mark.parametrize('seed', range(3))
def test_long_wide_cells_dataset_and_list_are_one(seed):
    d = make(seed, C=1)
    for o in d.x: o[-1] = 1. # a row that ends in NaN is the next test's matter
    x = [o[:, 0] for o in d.x]
    d.frame['a'] = np.concatenate(x)
    ways = [read_table(d.frame, columns='a', row='rec'), read_table(pd.DataFrame(x, index=d.ids), tail='end'), read_table(pd.DataFrame(dict(v=x))), read_table(pd.DataFrame(dict(v=[o.tolist() for o in x]))),
            read_table(Dataset.from_dict(dict(v=x))), read_table(Dataset.from_pandas(d.frame), columns='a', row='rec'), read_table(pd.DataFrame(x).assign(n=d.counts), lengths='n')]
    for t in ways: assert same_rows(t.x, x)
    tokens = [np.round(o*2).clip(-3, 3) for o in [np.nan_to_num(o) for o in x]]
    whole = [o.astype(np.int64) for o in tokens]
    assert same_rows(read_table(pd.DataFrame(dict(v=whole))).x, whole)
    assert same_rows(read_table(d.frame.assign(a=np.concatenate(whole)), columns='a', row='rec').x, whole)
    assert same_rows(read_table(pd.DataFrame(tokens).astype('Int64'), tail='end').x, whole) # whole numbers stay whole when only ends were missing

def test_multichannel_wide_dict():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(5, 4, 2))
    f = pd.DataFrame(np.concatenate([a[..., 0], a[..., 1]], 1), columns=[f'{c}{i}' for c in 'pq' for i in range(4)])
    t = read_table(f, columns=dict(p=['p0', 'p1', 'p2', 'p3'], q=['q0', 'q1', 'q2', 'q3']))
    assert np.array_equal(t.x, a) and t.channels == ['p', 'q']
    f.loc[1, ['p3', 'q3', 'q2']] = np.nan # the row ends where no channel has a value
    assert read_table(f, columns=dict(p=['p0', 'p1', 'p2', 'p3'], q=['q0', 'q1', 'q2', 'q3']), tail='end').lengths.tolist() == [4, 3, 4, 4, 4]
    assert np.array_equal(read_table(Dataset.from_pandas(f), columns=dict(p=['p0', 'p1'], q=['q0', 'q1'])).x, a[:, :2])

def test_tail_is_a_named_choice():
    f = pd.DataFrame([[1, np.nan, 3], [1, 2, np.nan], [np.nan, np.nan, 1]])
    with pytest.warns(UserWarning, match="1 of 3 rows end in NaN"): t = read_table(f)
    assert t.x.shape == (3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert read_table(f, tail='missing').x.shape == (3, 3)
        assert read_table(f, tail='end').lengths.tolist() == [3, 2, 3]
        read_table(f.fillna(0)); read_table(make().frame, columns=['a'], row='rec'); read_table(Dataset.from_dict(dict(v=[[1., None], [2., 3.]])))
    with pytest.raises(ValueError, match="row 0 has no value at all"): read_table(pd.DataFrame([[np.nan]*2, [1., 2]]), tail='end')
    assert read_table(Dataset.from_dict(dict(v=[[1., None], [2., 3.]])), tail='end').lengths.tolist() == [1, 2]
    t = read_table(pd.DataFrame([['u', 'v', 'w'], ['v', None, None]]), columns=[0, 1, 2], tail='end') # symbols side by side
    assert t.x == [['u', 'v', 'w'], ['v']]

def test_one_step_rows_and_one_channel_of_nan():
    f = pd.DataFrame(dict(rec=[1, 2, 3], a=[1., 2, 3], b=[np.nan]*3))
    t = read_table(f, row='rec')
    assert t.x.shape == (3, 1, 2) and np.isnan(t.x[..., 1]).all() and t.x[..., 0].ravel().tolist() == [1, 2, 3]
    assert read_table(f.assign(b=None), row='rec', columns=['a', 'b']).x.shape == (3, 1, 2) # nothing but None
    assert read_table(f.assign(b=None), row='rec').channels == ['a'] # of no type: only when named

def test_index_does_not_matter_to_long_and_names_rows_of_wide():
    d = make()
    base = read_table(d.frame, y='y', row='rec', times='t')
    for index in (np.zeros(len(d.frame), int), np.arange(len(d.frame))[::-1], pd.date_range('2020', periods=len(d.frame)), [f'i{i}' for i in range(len(d.frame))]):
        t = read_table(d.frame.set_axis(index, axis=0), y='y', row='rec', times='t')
        assert same(t.x, base.x) and list(t.row_names) == list(base.row_names) and same(t.lines, base.lines)
    assert same(read_table(d.frame.set_index(['rec', 't']), y='y', row='rec', times='t', columns=['a', 'b', 'c', 'site']).x, base.x) # levels of the index are columns
    assert read_table(pd.DataFrame(np.ones((2, 3)), index=['u', 'w'])).row_names.tolist() == ['u', 'w']

def test_input_is_left_as_it_was():
    d = make()
    before = d.frame.copy()
    read_table(d.frame, y='y', row='rec', times='t', groups='site', tail='end')
    pd.testing.assert_frame_equal(d.frame, before)
    wide = pd.DataFrame(np.arange(6.).reshape(2, 3)); read_rows(read_table(wide).x)
    assert wide.to_numpy().ravel().tolist() == list(range(6))

def test_pickles():
    t = read_table(make().frame, y='y', row='rec', times='t', groups='site')
    u = pickle.loads(pickle.dumps(t))
    assert same(t.x, u.x) and repr(t) == repr(u) and 'times' in repr(t)

# dtypes

numbers = [pytest.param(lambda o, d=d: pd.Series(o, dtype=d), id=d) for d in ('float32', 'float64', 'Float32', 'Float64', 'Int64', 'object', 'Sparse[float]')] + \
          [pytest.param(lambda o, d=d: pd.Series(pa.array(o, d), dtype=pd.ArrowDtype(d)), id=f'arrow {d}') for d in (pa.int16(), pa.float32(), pa.float64(), pa.uint8())]

@pytest.mark.parametrize('column', numbers)
@pytest.mark.parametrize('missing', (False, True))
def test_numbers_of_every_dtype(column, missing):
    v = [1, None, 3, 4] if missing else [1, 2, 3, 4]
    want = [np.array([[1, 0], [np.nan if missing else 2, 1]]), np.array([[3, 2], [4, 3]])]
    f = pd.DataFrame(dict(rec=[0, 0, 1, 1], a=column(v), b=range(4)))
    t = read_table(f, columns=['a', 'b'], row='rec')
    assert same(t.x, want) and t.x.dtype.kind == 'f'
    wide = read_table(pd.DataFrame(dict(a=column(v), b=range(4))), tail='missing')
    assert np.array_equal(wide.x, np.stack([[1, np.nan if missing else 2, 3, 4], range(4)], 1), equal_nan=True)

def test_truth_values():
    for column in (pd.Series([True, False, True]), pd.Series([True, None, True], dtype='boolean'), pd.Series(pa.array([True, None, True]), dtype=pd.ArrowDtype(pa.bool_()))):
        t = read_table(pd.DataFrame(dict(rec=[0, 0, 0], a=column, b=[.5]*3)), row='rec')
        assert t.channels == ['a', 'b'] and t.x[0, [0, 2], 0].tolist() == [1, 1] and (t.x[0, 1, 0] == 0 or np.isnan(t.x[0, 1, 0]))

texts = ['str', 'string', 'object', 'category', 'string[pyarrow]', 'large_string[pyarrow]']
@pytest.mark.parametrize('dtype', texts)
def test_text_of_every_dtype(dtype):
    f = pd.DataFrame(dict(rec=[0, 1, 0], code=pd.Series(['b', 'a', 'c'], dtype=dtype), y=pd.Series(['u', 'w', 'u'], dtype=dtype)))
    t = read_table(f, columns='code', row='rec', y='y')
    assert t.x == [['b', 'c'], ['a']] and t.y.tolist() == ['u', 'w'] and all(type(o) is str for r in t.x for o in r)
    assert t.channels == ['code'] and read_table(f, columns=['code'], row='rec').x == t.x
    assert read_table(f, columns='code', y='y').x == ['b', 'a', 'c'] # one text a line
    with pytest.raises(ValueError, match="line 1 .*row 1.* is missing"): read_table(f.assign(code=pd.Series(['b', None, 'c'], dtype=dtype)), columns='code', row='rec')
    with pytest.raises(ValueError, match="row 1 is missing"): read_table(f.assign(code=pd.Series(['b', None, 'c'], dtype=dtype)), columns='code')
    assert read_table(f.assign(y=pd.Series(['u', None, 'u'], dtype=dtype)), columns='code', row='rec', y='y').y.tolist() == ['u', None]

def test_categories_that_are_numbers():
    f = pd.DataFrame(dict(rec=[0, 0, 1], code=pd.Categorical([5, 7, 5]), y=pd.Categorical([1, 1, None])))
    t = read_table(f, columns='code', row='rec', y='y')
    assert t.x == [[5, 7], [5]] and t.y.tolist() == [1, None] and read_rows(t.x).symbols == [5, 7]

def test_whole_numbers_with_gaps_are_measurements_only_in_a_list():
    f = pd.DataFrame(dict(rec=[0, 0], a=pd.Series([1, None], dtype='Int64')))
    assert np.array_equal(read_table(f, columns=['a'], row='rec').x, [[[1], [np.nan]]], equal_nan=True)
    with pytest.raises(ValueError, match=r"line 1.*columns=\[\.\.\.\]"): read_table(f, columns='a', row='rec')

@pytest.mark.parametrize('y,want', ((pd.Series([1, 1, None], dtype='Int64'), [1, None]), (pd.Series([True, True, None], dtype='boolean'), [True, None]), (pd.Series([1., 1, np.nan]), None), (pd.Series(['a', 'a', None]), ['a', None])))
def test_missing_labels_stay_missing(y, want):
    t = read_table(pd.DataFrame(dict(rec=[0, 0, 1], a=[1., 2, 3], y=y)), row='rec', y='y')
    assert (t.y.tolist() == want) if want else np.isnan(t.y[1])
    with pytest.raises(ValueError, match='not the same on all lines'): read_table(pd.DataFrame(dict(rec=[0, 0, 0], a=[1., 2, 3], y=y)), row='rec', y='y') # a label on some of a row's lines

# times

start = pd.Timestamp('2020-03-29 00:30')
clock = pd.Series([start, start+pd.Timedelta('1h'), start+pd.Timedelta('3h')])
@pytest.mark.parametrize('times', (clock, clock.dt.tz_localize('UTC'), clock.dt.tz_localize('UTC').dt.tz_convert('Europe/Berlin'), clock-start, clock.astype('datetime64[ns]'), clock.astype('datetime64[s]'), pd.Series([0, 3600, 10800]),
    pd.Series([100., 3700, 10900]), pd.Series([0, 3600, 10800], dtype='Int64'), pd.Series([0, 3600, 10800], dtype='uint16'), pd.Series(pa.array(clock), dtype=pd.ArrowDtype(pa.timestamp('us'))),
    pd.Series(pa.array(clock.dt.tz_localize('UTC')), dtype=pd.ArrowDtype(pa.timestamp('ns', 'Europe/Berlin'))), pd.Series(pa.array(clock-start), dtype=pd.ArrowDtype(pa.duration('ms')))), ids=lambda o: str(o.dtype))
def test_times_of_every_dtype(times):
    f = pd.DataFrame(dict(rec=[0, 0, 0], t=times, a=[1., 2, 3]))
    for order in itertools.permutations(range(3)):
        t = read_table(f.iloc[list(order)], row='rec', times='t', columns='a')
        assert t.x.tolist() == [[1, 2, 3]] and t.times[0].tolist() == [0, 3600, 10800] and t.times[0].dtype == np.float64 and isinstance(t.times, list)
    missing = f.assign(t=f.t.where(f.a != 2))
    with pytest.raises(ValueError, match=r"times='t' is missing.*line 1 \(row 0\)"): read_table(missing, row='rec', times='t', columns='a')

def test_the_hour_that_is_not_there():
    local = pd.Series(pd.to_datetime(['2020-03-29 01:30', '2020-03-29 03:30'])).dt.tz_localize('Europe/Berlin')
    assert read_table(pd.DataFrame(dict(rec=[0, 0], t=local, a=[1., 2])), row='rec', times='t').times[0].tolist() == [0, 3600]

def test_ties():
    f = pd.DataFrame(dict(rec=list('uvuu'), t=[1, 1, 2, 1], a=[1., 2, 3, 4]))
    with pytest.raises(ValueError, match=r"row 'u' has two steps at 1 \(line 0 .* line 3"): read_table(f, row='rec', times='t')
    t = read_table(f, row='rec', times='t', columns='a', ties='keep')
    assert [o.tolist() for o in t.x] == [[1, 4, 3], [2]] and t.times[0].tolist() == [0, 0, 1] # in their own order

@pytest.mark.parametrize('bad', (['2020-01-01', '2020-01-02'], [datetime.time(1), datetime.time(2)], [True, False], [1j, 2j]))
def test_times_that_are_none(bad):
    with pytest.raises(TypeError, match="times='t' holds.*accepted: numbers"): read_table(pd.DataFrame(dict(rec=[0, 0], a=[1., 2], t=bad)), row='rec', times='t', columns='a')

def test_times_in_cells():
    f = pd.DataFrame(dict(v=[[1., 2, 3], [4.]], t=[[5, 3, 4], [9]], y=[['a', 'b', 'c'], ['d']]), index=['u', 'w'])
    t = read_table(f, columns='v', times='t', y='y', per='step')
    assert [o.tolist() for o in t.x] == [[2, 3, 1], [4]] and [o.tolist() for o in t.times] == [[0, 1, 2], [0]] and [o.tolist() for o in t.y] == [['b', 'c', 'a'], ['d']]
    with pytest.raises(ValueError, match="times='t' has 2 steps in row 'u', x has 3"): read_table(f.assign(t=[[1, 2], [1]]), columns='v', times='t')
    stamps = Dataset.from_dict(dict(v=[[1., 2]], t=[[datetime.datetime(2020, 1, 1, 0, 0, 9), datetime.datetime(2020, 1, 1)]]))
    assert read_table(stamps, columns='v', times='t').times[0].tolist() == [0, 9] and read_table(stamps, columns='v', times='t').x.tolist() == [[2, 1]]
    padded = pd.DataFrame(dict(v=[[1., 2, 0], [4., 0, 0]], t=[[5, 3, np.nan], [9, np.nan, np.nan]], n=[2, 1])) # the padding needs no time
    assert [o.tolist() for o in read_table(padded, columns='v', times='t', lengths='n').x] == [[2, 1], [4]]

# labels

def test_labels_a_step():
    f = pd.DataFrame(dict(rec=[0, 1, 0], t=[2, 0, 1], a=[1., 2, 3], p=[1, 2, 3], q=[.5, .6, .7], s=['x', 'y', 'z']))
    for y, want in (('p', [[3, 1], [2]]), ('s', [['z', 'x'], ['y']]), (['p', 'q'], [[[3, .7], [1, .5]], [[2, .6]]])):
        t = read_table(f, y=y, columns='a', row='rec', times='t', per='step')
        assert [o.tolist() for o in t.y] == want and t.per == 'step' and isinstance(t.y, list)
    wide = pd.DataFrame([[1., 2, 3, 4, 5, np.nan]], columns=list('abcdef'))
    t = read_table(wide, columns=['a', 'b', 'c'], y=['d', 'e', 'f'], per='step')
    assert np.array_equal(t.y[0], [4, 5, np.nan], equal_nan=True) and t.x.tolist() == [[1, 2, 3]]
    with pytest.raises(ValueError, match="y has 2 steps in row 0, x has 3"): read_table(wide, columns=['a', 'b', 'c'], y=['d', 'e'], per='step')
    t = read_table(Dataset.from_dict(dict(text=['ab', 'c'], tag=[['N', 'V'], ['N']])), y='tag', columns='text', per='step')
    assert t.x == ['ab', 'c'] and [o.tolist() for o in t.y] == [['N', 'V'], ['N']]

def test_several_targets_and_label_lists():
    f = pd.DataFrame(dict(v=[[1., 2], [3.]], p=[1, 2], q=[.5, .25], tags=[['a'], ['b', 'a']], sets=[{'a'}, {'b', 'a'}], vec=[np.array([1., 2]), np.array([3., 4])]))
    assert read_table(f, y=['p', 'q'], columns='v').y.tolist() == [[1, .5], [2, .25]] and read_table(f, y=['p'], columns='v').y.tolist() == [[1], [2]]
    assert read_table(f, y='tags', columns='v').y == [['a'], ['b', 'a']] and read_table(f, y='sets', columns='v').y == [{'a'}, {'b', 'a'}]
    assert np.array_equal(read_table(f, y='vec', columns='v').y, [[1, 2], [3, 4]])
    lines = pd.DataFrame(dict(rec=[0, 0, 1], a=[1., 2, 3], tags=[['a', 'b'], ['a', 'b'], []]))
    assert read_table(lines, row='rec', columns='a', y='tags').y == [['a', 'b'], []]
    with pytest.raises(ValueError, match="not the same"): read_table(lines.assign(tags=[['a'], ['b'], []]), row='rec', columns='a', y='tags')
    with pytest.raises(TypeError, match="y='tags' holds object"): read_table(f, y=['p', 'tags'], columns='v')

def test_class_labels_are_names():
    names = ['neg', 'pos']
    ds = Dataset.from_dict(dict(text=['u', 'v', 'w'], y=[1, 0, -1], tags=[[0, 1], [], [1]], step=[[1], [0], [1]]),
                           features=Features(text=Value('string'), y=ClassLabel(names=names), tags=List(ClassLabel(names=names)), step=List(ClassLabel(names=names))))
    assert read_table(ds, y='y', columns='text').y.tolist() == ['pos', 'neg', None] # -1 marks a hidden label; it is not the last name
    assert read_table(ds, y='tags', columns='text').y == [['neg', 'pos'], [], ['pos']]
    assert [o.tolist() for o in read_table(ds, y='step', columns='text', per='step').y] == [['pos'], ['neg'], ['pos']]
    assert read_table(ds, columns='step').x == [['pos'], ['neg'], ['pos']]
    assert read_table(ds.add_column('rec', [0, 0, 0]).map(lambda o: dict(v=1.), features=None).cast_column('y', ClassLabel(names=names)).select([0, 0]), columns='v', row='rec', y='y').y.tolist() == ['pos']

def test_labels_that_are_null_are_not_the_first_class():
    names = ClassLabel(names=['neg', 'pos'])
    ds = Dataset.from_dict(dict(v=[[1.], [2., 3.]], y=[None, 1], tags=[[None], [1, 0]]), features=Features(v=List(Value('float32')), y=names, tags=List(names)))
    assert read_table(ds, y='y', columns='v').y.tolist() == [None, 'pos']
    assert [o.tolist() for o in read_table(ds, y='tags', columns='v', per='step').y] == [[None], ['pos', 'neg']]

def test_columns_named_by_numbers():
    f = pd.DataFrame({0: [0, 0, 1], 1: [5, 6, 7], 2: [1, 1, 0]})
    t = read_table(f, row=0, columns=1, y=2) # one name: whole numbers stay whole
    assert [o.tolist() for o in t.x] == [[5, 6], [7]] and t.x[0].dtype.kind == 'i' and t.y.tolist() == [1, 0] and t.channels == [1]
    assert read_table(f, columns=range(2), y=np.int64(2)).x.tolist() == [[0, 5], [0, 6], [1, 7]]

# 51: Hugging Face datasets, ragged or not, named columns

@pytest.mark.parametrize('feature', (List(Value('float32')), LargeList(Value('float32')), List(Value('float64')), List(Value('float16'))), ids=str)
def test_51_ragged_lists(feature):
    rng = np.random.default_rng(0)
    rows = [np.where(rng.random(k) < .2, np.nan, rng.integers(0, 9, k)).tolist() for k in rng.integers(1, 20, 40)]
    rows = [[None if o != o else o for o in r] for r in rows]
    want = [np.array([np.nan if o is None else o for o in r]) for r in rows]
    ds = Dataset.from_dict(dict(v=rows, other=list(range(40))), features=Features(v=feature, other=Value('int64')))
    for o, idxs in ((ds, range(40)), (ds.select(range(5, 9)), range(5, 9)), (ds.select([7, 3, 3]), [7, 3, 3]), (ds.shuffle(seed=0), None), (ds.filter(lambda o: o['other'] % 3 == 0), range(0, 40, 3)),
                    (concatenate_datasets([ds, ds.select([4])]), [*range(40), 4]), (ds.with_format('torch'), range(40)), (ds.with_format('numpy'), range(40)), (ds.with_format('pandas', columns=['other']), range(40)), (ds.flatten_indices(), range(40))):
        t = read_table(o, columns='v')
        assert same(t.x, [want[i] for i in (o['other'] if idxs is None else idxs)]) and t.x[0].dtype.kind == 'f' and len(t.row_names) == len(o)
    assert same(read_table(ds.select_columns(['v'])).x, want) # the only one

def test_51_small_pieces_are_joined_in_blocks(monkeypatch):
    "More bytes than one block holds, as a set of gigabytes has."
    import lrpt_nb.frames as frames
    rows = [np.arange(k, dtype=float) for k in np.random.default_rng(0).integers(1, 50, 300)]
    ds = Dataset.from_dict(dict(v=rows)).shuffle(seed=1).add_column('i', range(300))
    col = frames._Columns(ds.select(np.random.default_rng(2).permutation(300))).get('v', 'columns')
    want = [np.array(o.as_py()) for o in col]
    assert col.num_chunks > 100 and len(frames._blocks(col)) == 1
    class Large:
        nbytes, num_chunks, slice = 2**30, col.num_chunks, staticmethod(col.slice)
        def __len__(self): return len(col)
    assert len(frames._blocks(Large())) == 4
    values, counts = frames._arrow_steps(Large(), 'v')
    assert np.array_equal(values, np.concatenate(want)) and counts.tolist() == [len(o) for o in want]

def test_51_written_and_read_again(tmp_path):
    d = make()
    Dataset.from_dict(dict(v=d.x, y=d.y)).save_to_disk(tmp_path/'ds')
    t = read_table(Dataset.load_from_disk(tmp_path/'ds'), y='y')
    assert same(t.x, d.x) and t.y.tolist() == d.y.tolist()
    f = pd.DataFrame(dict(v=d.x, a=[o[:, 0] for o in d.x], y=d.y)); f['v'] = [o.tolist() for o in f.v]
    f.to_parquet(tmp_path/'f.parquet')
    for back in (pd.read_parquet(tmp_path/'f.parquet'), pd.read_parquet(tmp_path/'f.parquet', dtype_backend='pyarrow')):
        assert same(read_table(back, columns='v', y='y').x, d.x) and same(read_table(back, columns='a', y='y').x, [o[:, 0] for o in d.x])
    d.frame.to_csv(tmp_path/'f.csv', index=False)
    assert same(read_table(pd.read_csv(tmp_path/'f.csv', float_precision='round_trip'), y='y', row='rec', times='t', groups='site').x, d.x)
    d.frame.to_csv(tmp_path/'f.csv')
    with pytest.raises(ValueError, match="'Unnamed: 0', most likely an old index"): read_table(pd.read_csv(tmp_path/'f.csv'), y='y', row='rec', times='t', groups='site')

@pytest.mark.parametrize('feature', (List(List(Value('float32'))), Array2D((None, 2), 'float32'), List(List(Value('float32'), length=2))), ids=('lists', 'Array2D', 'fixed'))
def test_51_steps_of_channels(feature):
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(k, 2)).astype(np.float32) for k in rng.integers(1, 9, 20)]
    ds = Dataset.from_dict(dict(v=[o.tolist() for o in rows]), features=Features(v=feature))
    assert same(read_table(ds).x, rows) and same(read_table(ds.select([4, 2])).x, [rows[4], rows[2]]) and same(read_table(concatenate_datasets([ds, ds])).x, rows*2)

def test_51_fixed_lists_tokens_and_strings():
    ds = Dataset.from_dict(dict(v=[[1., 2.], [3., 4.]], i=[[1, 2], [3, 4]], s=[['a'], ['b', 'c']], t=['ab', 'c']), features=Features(v=List(Value('float32'), length=2), i=List(Value('int32')), s=List(Value('string')), t=Value('large_string')))
    assert read_table(ds, columns='v').x.tolist() == [[1, 2], [3, 4]] and read_table(ds, columns='i').x.dtype == np.int32 and read_table(ds, columns='i').channels == ['i']
    assert read_table(ds, columns='s').x == [['a'], ['b', 'c']] and read_table(ds, columns='t').x == ['ab', 'c'] and read_table(ds, columns=['t']).x == ['ab', 'c']
    assert read_table(ds, columns=['v', 'i']).x.tolist() == [[[1, 1], [2, 2]], [[3, 3], [4, 4]]]
    assert read_table(ds, columns=['i']).x.dtype.kind == 'f' and read_table(ds, columns=['i']).x.shape == (2, 2, 1) # in a list it is a channel

@pytest.mark.parametrize('rows,feature,words', (([[1], [2, None]], List(Value('int64')), "row 1 .*int64.*cast"), ([[1.], None], List(Value('float32')), "row 1 is missing"), ([[1.], []], List(Value('float32')), "row 1 has no steps"),
    ([[[1.]], [[2.], None]], List(List(Value('float32'))), "row 1 has a missing step"), ([[[1., 2.]], [[3.]]], List(List(Value('float32'))), 'same number of channels'), ([['a'], ['b', None]], List(Value('string')), "row 1 .*string"),
    ([[[1, 2]], [[3, None], [5, 6]]], List(List(Value('int64'))), 'row 1 '), ([[[[1.]]]], Array3D((1, 1, 1), 'float32'), 'same number of channels|lists of steps'), (['a', None], Value('string'), "row 1 is missing"), (['a', ''], Value('string'), "row 1 is empty")))
def test_51_rows_that_cannot_be_read(rows, feature, words):
    with pytest.raises(ValueError, match=words): read_table(Dataset.from_dict(dict(v=rows), features=Features(v=feature)), columns='v')
    if not isinstance(feature, Array3D):
        again = concatenate_datasets([Dataset.from_dict(dict(v=rows[:1]), features=Features(v=feature))]*3 + [Dataset.from_dict(dict(v=rows), features=Features(v=feature))]) # rows are counted across chunks
        with pytest.raises(ValueError, match=words.replace('row 1', 'row 4')): read_table(again, columns='v')

def test_51_rows_are_counted_across_large_chunks():
    half = Dataset.from_dict(dict(v=[[1]]*150))
    ds = concatenate_datasets([half, Dataset.from_dict(dict(v=[[1]]*120 + [[2, None]]))])
    with pytest.raises(ValueError, match='row 270 '): read_table(ds)

def test_51_what_is_not_one_dataset():
    ds = Dataset.from_dict(dict(v=[[1.], [2.]]))
    with pytest.raises(TypeError, match=r"'train', 'validation'.*x=ds\['train'\].*valid=ds\['validation'\]"): read_table(DatasetDict(train=ds, validation=ds))
    with pytest.raises(TypeError, match="'train', 'test'"): read_table(DatasetDict(train=ds, test=ds))
    with pytest.raises(TypeError, match='IterableDataset, a stream'): read_table(ds.to_iterable_dataset())
    with pytest.raises(ValueError, match='set_transform'): read_table(ds.with_transform(lambda o: o))
    with pytest.raises(ValueError, match='no rows'): read_table(ds.select([]))

# errors

f = pd.DataFrame(dict(rec=[0, 0, 1], time=[0, 1, 0], ax=[1., 2, 3], note=['a', 'b', 'c'], label=[0, 0, 1], meta=[{}, {}, {}]))
wide = pd.DataFrame(np.ones((2, 3)), columns=['s0', 's1', 's2'])
@pytest.mark.parametrize('x,kw,words', (
    (f, dict(row='record'), "row='record' is no column.*'rec'"), (f, dict(row='rec', y='lable'), "y='lable' is no column.*'label'.*outside the table"), (f, dict(row='rec', columns=['ax', 'Ay']), "columns='Ay' is no column.*'ax'"),
    (f, dict(row='rec', times='tim'), "times='tim'.*'time'"), (f, dict(row='rec', groups='zzz'), "groups='zzz' is no column of x. Columns: 'rec'"), (f, dict(row=['rec', 'time']), 'row must be one column name, not list'),
    (f, dict(row='rec', columns=['ax', 'label'], y='label'), 'columns and y both name'), (f, dict(row='rec', columns=['rec']), 'columns and row both name'), (f, dict(row='rec', columns=[]), 'empty'), (f, dict(row='rec', columns=['ax', 'ax']), 'twice'),
    (f, dict(row='rec', columns='ax', groups='note'), "groups='note' is not the same on all lines of row 0"), (f, dict(row='rec', columns=['ax', 'note']), "columns='note' must hold numbers"), (f, dict(row='rec', columns=['meta']), 'must hold numbers'),
    (f, dict(row='rec', columns='meta'), "columns='meta' holds object"), (f, dict(row='rec', columns=dict(a=['ax'])), 'columns is a dict'), (f, dict(columns='ax'), 'one value a line.*row='), (f, dict(), 'cannot tell which columns'),
    (f[['rec', 'note']], dict(row='rec'), "cannot tell.*'note' .text"), (f, dict(row='rec', per='rows'), "per='rows'"), (wide, dict(tail='cut'), "tail='cut'"), (f, dict(row='rec', ties='drop'), "ties='drop'"),
    (f[:0], dict(row='rec'), 'no rows'), (f, dict(row='rec', columns='ax', y=f.label), 'y must name columns'), (f, dict(row='rec', columns='ax', y=torch.zeros(3)), 'y must name columns'), (f, dict(row='rec', columns='ax', y=[0, 1, 0]), 'y=0 is no column'),
    (wide.assign(n=[4, 1]), dict(lengths='n'), "lengths='n' is 4 in row 0, which has 1 to 3"), (wide.assign(n=[0, 1]), dict(lengths='n'), "lengths='n' is 0"), (wide.assign(n=[1.5, 1]), dict(lengths='n'), 'whole number'),
    (wide.assign(n=['a', 'b']), dict(lengths='n'), 'whole number'), (wide.set_axis(['s', 's', 'u'], axis=1), dict(), "2 columns of that name"), (wide.set_axis(pd.MultiIndex.from_product([['a'], ['b', 'c', 'd']]), axis=1), dict(), '2 levels'),
    (wide.assign(g=[None, 'a']), dict(groups='g'), "groups='g' is missing in row 0"), (wide.assign(c=[[1, 2], [3, 4]]), dict(columns=['c', 's0']), "columns='s0' must hold a list"), (wide.assign(c=[[1, 2], 3]), dict(columns='c'), 'row 1 holds 3'),
    (wide.assign(a=[[1], [2]], b=[[1], [2, 3]]), dict(columns=['a', 'b']), "columns='b' has 2 steps in row 1, x has 1"), (wide.assign(c=[[], [1.]]), dict(columns='c'), 'row 0 has no steps'), (wide.assign(s1='q'), dict(columns=['s0', 's1']), "column 's1' must hold numbers"),
    (f.assign(rec=[0, None, 1]), dict(row='rec'), 'missing on line 1'), (f, dict(columns='note', times='time'), 'needs steps'), (f.assign(note=['a', 1, 'c']), dict(columns='note', row='rec'), 'mixes str and int'),
    ([[1, 2]], dict(), 'must be a pandas DataFrame.*not list'), (f.ax, dict(), 'not Series'), (None, dict(), 'not NoneType')))
def test_errors_name_what_is_wrong(x, kw, words):
    with pytest.raises((ValueError, TypeError), match=words): read_table(x, **kw)

def test_other_tables_come_through_pandas():
    class Other: # what polars offers, which need not be installed
        columns = list(f)
        def to_pandas(self): return f
    assert is_table(Other()) and same(read_table(Other(), columns='ax', row='rec').x, read_table(f, columns='ax', row='rec').x)
    arrow = pa.table(dict(v=pa.array([[1., 2.], [3.]])))
    assert is_table(arrow) and same(read_table(arrow).x, [[1, 2], [3]])
    assert not any(map(is_table, (f.ax, f.to_numpy(), [f], dict(a=1), 'a', None, torch.zeros(2), f.index)))

def test_nothing_is_imported_to_tell_a_table():
    code = "import sys, lrpt_nb.frames as f; f.is_table([1]); print([o for o in ('pandas', 'datasets', 'pyarrow', 'polars') if o in sys.modules])"
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout.strip() == '[]'

# answers

def test_answers_join_the_table_they_came_from():
    d = make()
    shuffled = d.frame.sample(frac=1, random_state=5)
    t = read_table(shuffled, y='y', row='rec', times='t', groups='site')
    scores = torch.tensor(np.array([[o[:, 0].size, i] for i, o in enumerate(t.x)]))
    out = shuffled.join(rows_to_frame(t.row_names, scores, names=['n', 'i'], index='rec'), on='rec')
    assert out.n.tolist() == shuffled.groupby('rec').a.transform('size').tolist() and len(out) == len(shuffled)
    some = t.take([5, 2])
    assert rows_to_frame(some.row_names, scores[[5, 2]], names=['n', 'i']).i.to_dict() == {t.row_names[5]: 5, t.row_names[2]: 2}
    steps = rows_to_frame(t.row_names, [o[:, 1] for o in t.x], lines=t.lines) # back in the order of the lines
    assert np.array_equal(steps.prediction, shuffled.b, equal_nan=True) and steps['row'].tolist() == shuffled.rec.tolist()
    padded, lengths = np.zeros((len(t), 9, 2)), t.lengths
    for i, o in enumerate(t.x): padded[i, :len(o)] = o[:, :2]
    two = rows_to_frame(t.row_names, torch.tensor(padded), names=['a', 'b'], lengths=lengths, lines=t.lines, labels=[np.arange(9)]*len(t))
    assert np.array_equal(two[['a', 'b']], shuffled[['a', 'b']], equal_nan=True) and two.prediction.tolist() == [int(np.flatnonzero(t.lines[list(t.row_names).index(r)] == i)[0]) for i, r in enumerate(shuffled.rec)]

def test_answers_of_every_shape():
    assert rows_to_frame([3, 4], ['a', 'b']).prediction.to_dict() == {3: 'a', 4: 'b'}
    assert list(rows_to_frame([3, 4], torch.zeros(2, 1))) == ['prediction'] and list(rows_to_frame([3, 4], torch.zeros(2, 2))) == ['prediction_0', 'prediction_1']
    many = rows_to_frame([3, 4], torch.rand(2, 2).bfloat16(), names=['a', 'b'], labels=[['a'], []])
    assert many.prediction.tolist() == [['a'], []] and list(many) == ['prediction', 'a', 'b'] and many.index.tolist() == [3, 4]
    assert rows_to_frame([3, 4], torch.rand(2, requires_grad=True), labels=torch.tensor([1, 0])).prediction.tolist() == [1, 0]
    for kw, words in ((dict(lines=[[0], [1]]), 'a step'), (dict(labels=[1]), 'labels holds 1')):
        with pytest.raises(ValueError, match=words): rows_to_frame([3, 4], torch.zeros(2), **kw)
    with pytest.raises(ValueError, match='several numbers a step'): rows_to_frame([3], torch.zeros(1, 2, 2))
