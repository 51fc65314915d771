"Own data through the front door: what training chose is what new rows are read by."
import numpy as np
import pandas as pd
import pytest

from lrpt_nb.data import seq_dls

rng = np.random.default_rng(0)
wide = pd.DataFrame(rng.normal(size=(60, 12)), columns=[f's{i}' for i in range(12)]).assign(site=np.arange(60)//3, label=['u', 'v']*30)
long = pd.DataFrame([dict(rec=i, t=j, a=rng.normal(), b=50+rng.normal(), patient=i//2, label='xy'[i//2 % 2]) for i in range(40) for j in range(12)])

@pytest.mark.parametrize('change', [lambda t: t, lambda t: t[t.columns[::-1]], lambda t: t.assign(more=7.), lambda t: t.drop(columns=['label']), lambda t: t.drop(columns=t.columns[t.columns.isin(['site', 'patient'])])])
@pytest.mark.parametrize('kind', ['wide', 'long'])
def test_new_rows_are_read_by_the_columns_of_training(kind, change):
    "Another order, columns more, no label, no group: the same inputs."
    t, kw = dict(wide=(wide, dict(y='label', groups='site')), long=(long, dict(y='label', row='rec', times='t', groups='patient')))[kind]
    dls = seq_dls(t, valid=.3, seed=0, **kw)
    want = dls.test_dl(t[[o for o in t if o not in ('site', 'patient', 'label')]]).dataset.x
    got = dls.test_dl(change(t)).dataset.x
    assert got.shape == want.shape == (len(want), 12, want.shape[2]) and dls.prep.d_in == want.shape[2]
    np.testing.assert_array_equal(got.numpy(), want.numpy())

def test_a_missing_column_is_named():
    dls = seq_dls(wide, 'label', groups='site')
    with pytest.raises(ValueError, match="'s3'"): dls.test_dl(wide.drop(columns='s3'))

def test_validation_tables_are_read_by_name():
    t = long.drop(columns='patient')
    dls = seq_dls(t[t.rec < 30], 'label', row='rec', times='t', valid=t[t.rec >= 30][['b', 'rec', 't', 'a', 'label']])
    assert np.abs(dls.valid.dataset.x.numpy().mean((0, 1))[:2]).max() < 1

@pytest.mark.parametrize('columns', [wide.columns[:12], list(wide.columns[:12]), tuple(wide.columns[:12])])
def test_settings_of_a_table_are_plain(columns):
    import json
    json.dumps(seq_dls(wide, 'label', columns=columns).info())

def test_a_shorter_sequence_of_a_pair_is_padded():
    "The answer to a short one is not the answer to the same row filled up."
    a = rng.normal(size=(40, 20)) + 7
    dls = seq_dls(a, ['a', 'b']*20, pair=a[::-1].copy())
    for x, pair, want in (([a[0]], [a[1][:8]], [20, 8]), ([a[0][:8]], [a[1]], [8, 20])):
        assert dls.test_dl(x, pair=pair).dataset.lengths.tolist() == want

# what is given and cannot be used is an error

def test_unknown_arguments_are_errors():
    dls = seq_dls(wide, 'label', groups='site')
    for kw in dict(tims=1), dict(times=[[1]*12]*60), dict(lengths=[12]*60), dict(y=['u']*60):
        with pytest.raises((TypeError, ValueError), match=next(iter(kw))): dls.test_dl(wide, **kw)

@pytest.mark.parametrize('empty', [None, np.nan])
def test_new_rows_may_have_an_empty_label_column(empty):
    dls = seq_dls(wide, 'label', groups='site')
    assert dls.test_dl(wide.assign(label=empty)).dataset.y is None
    with pytest.raises(ValueError, match='row 1 of y is missing'): dls.test_dl(wide.assign(label=['u', empty]*30))

@pytest.mark.parametrize('theirs', [np.arange(20.), [str(i) for i in range(20)], pd.Series(range(20), dtype=object)])
def test_a_group_is_the_same_however_it_is_written(theirs):
    x, y = rng.normal(size=(40, 6)), ['a', 'b']*20
    with pytest.raises(ValueError, match='group'): seq_dls(x[:20], y[:20], groups=np.arange(20), valid=dict(x=x[20:], y=y[20:], groups=theirs))
    with pytest.warns(UserWarning, match='groups were given for x but not for valid'): seq_dls(x[:20], y[:20], groups=np.arange(20), valid=(x[20:], y[20:]))

def test_a_numpy_fraction_is_a_fraction():
    dls = seq_dls(wide, 'label', groups='site', valid=np.float32(.3))
    assert len(dls.valid.dataset) % 3 == 0

def test_a_sampler_of_nothing_is_an_error():
    with pytest.raises(ValueError, match='sampler is 0 for every training row'): seq_dls(rng.normal(size=(10, 6)), [0, 1]*5, valid=[0, 1], sampler=[1, 1]+[0]*8)

# one row of a table, and every kind of input through an export

def _dataset():
    from datasets import Dataset
    return Dataset.from_dict(dict(beat=[rng.normal(size=n).tolist() for n in rng.integers(5, 12, 40)], label=['x', 'y']*20))

def _learner(dls, arch='s4d'):
    from lrpt_nb.learner import sp_learner
    learn = sp_learner(dls, arch, size='tiny', seed=0)
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    return learn

@pytest.mark.parametrize('kind', ['wide', 'series', 'long', 'dict'])
def test_predict_takes_a_row_of_a_table(kind):
    t, kw, rows = dict(wide=lambda: (wide, dict(y='label', groups='site'), [wide[3:4]]), series=lambda: (wide, dict(y='label', groups='site'), [wide.iloc[3]]),
                       long=lambda: (long, dict(y='label', row='rec', times='t', groups='patient'), [long[long.rec == 3]]), dict=lambda: ((t := _dataset()), dict(y='label', columns='beat'), [t[3]]))[kind]()
    learn = _learner(seq_dls(t, bs=16, seed=0, **kw))
    with learn.no_bar(): preds, _ = learn.get_preds(dl=learn.dls.test_dl(t))
    label, _, probs = learn.predict(rows[0])
    np.testing.assert_allclose(probs.numpy(), preds[3].numpy(), atol=1e-5)
    assert label == learn.dls.vocab[int(preds[3].argmax())]
    if kind == 'wide':
        with pytest.raises(ValueError, match='holds 60'): learn.predict(wide)
        with pytest.raises(TypeError, match='time'): learn.predict(wide[:1], time=3)

ASK = '''
import pickle, sys, torch
from lrpt_nb.learner import load_learner
torch.set_num_threads(1)
for name, new, want in pickle.load(open(sys.argv[1], 'rb')):
    learn = load_learner(f'{sys.argv[2]}/{name}.pkl')
    with learn.no_bar(): got, _ = learn.get_preds(dl=learn.dls.test_dl(new.pop('x'), **new))
    assert torch.allclose(got, want, atol=1e-5), name
    print(name)
'''

def test_an_export_of_every_kind_of_table_and_row_answers_the_same_elsewhere(tmp_path):
    "TRAPS 54, for what the other export test does not make: tables, a `Dataset`, a memory map, pairs, labels of steps, times."
    import pickle, subprocess, sys
    values, steps = rng.normal(size=(40, 12, 2)).astype('f4'), np.sort(rng.uniform(0, 9, (40, 12)))
    np.save(tmp_path/'m.npy', values)
    y, d = ['a', 'b']*20, _dataset()
    kinds = dict(wide=((wide, 'label'), dict(groups='site'), dict(x=wide)), long=((long, 'label'), dict(row='rec', times='t', groups='patient'), dict(x=long)), dataset=((d, 'label'), dict(columns='beat'), dict(x=d.to_pandas())),
                 disk=((np.load(tmp_path/'m.npy', mmap_mode='r'), y), {}, dict(x=values)), pairs=((values[..., 0], y), dict(pair=values[::-1, :, 0].copy()), dict(x=values[:3, :, 0], pair=values[3:6, :, 0])),
                 dense=((values, rng.integers(0, 3, (40, 12))), dict(kind='dense'), dict(x=values)), times=((values, y), dict(times=steps), dict(x=values, times=steps)))
    asked = []
    for name, (args, kw, new) in kinds.items():
        learn = _learner(seq_dls(*args, bs=16, seed=0, device='cpu', **kw))
        with learn.no_bar(): want, _ = learn.get_preds(dl=learn.dls.test_dl(**new))
        learn.export(tmp_path/f'{name}.pkl')
        asked.append((name, new, want))
    (tmp_path/'asked').write_bytes(pickle.dumps(asked))
    res = subprocess.run([sys.executable, '-W', 'ignore', '-c', ASK, tmp_path/'asked', tmp_path], capture_output=True, text=True)
    assert res.returncode == 0 and res.stdout.split() == list(kinds), res.stderr[-2000:]

@pytest.mark.parametrize('how', ['table', 'frame'])
def test_several_label_columns_keep_their_names(how):
    t = wide.drop(columns=['site', 'label']).assign(rain=rng.integers(0, 2, 60), wind=rng.integers(0, 2, 60))
    dls = seq_dls(t, ['rain', 'wind'], columns=list(t.columns[:12]), seed=0) if how == 'table' else seq_dls(t.to_numpy()[:, :12], t[['rain', 'wind']], seed=0)
    assert list(dls.vocab) == ['rain', 'wind']
    label, _, p = _learner(dls).predict(dls.valid.dataset.raw(0)) if how == 'frame' else _learner(dls).predict(t[:1])
    assert set(label) <= {'rain', 'wind'}

def test_label_lists_of_equal_length():
    x, y = rng.normal(size=(40, 12, 2)), [[3, 7], [7, 9]]*20
    dls = seq_dls(x, y, kind='multilabel', valid=(x[:3], [[3, 9]]*3))
    assert list(dls.vocab) == [3, 7, 9] and dls.valid.dataset.y.tolist() == [[1, 0, 1]]*3
    assert dls.test_dl(x[:2], [[3, 7], [3, 7]]).dataset.y.tolist() == [[1, 1, 0]]*2
