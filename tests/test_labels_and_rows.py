"Labels and rows as people hold them: conventions of other libraries, containers of other libraries, and errors that name what is wrong."
import warnings
from collections import UserDict
from datetime import datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest
import torch

from lrpt_nb.data import seq_dls
from lrpt_nb.learner import load_learner, sp_learner
from lrpt_nb.rows import read_rows
from lrpt_nb.storage import Ragged
from lrpt_nb.targets import TargetPrep, class_weights, label_names

r = np.random.RandomState(0)
x = r.randn(40, 12, 2).astype('f4')
y = ['a', 'b']*20

@pytest.mark.parametrize('mark', (-100, None, np.nan))
def test_a_step_marked_as_not_counting_is_no_class(mark):
    "-100 is torch's and transformers' mark, and what `encode` itself writes."
    steps = [[0, 1, 2]*4 for _ in range(40)]
    steps[0] = [mark]*6+[1]*6
    dls = seq_dls(x, steps if mark is None else np.array(steps), kind='dense', valid=[1, 2])
    assert list(dls.vocab) == [0, 1, 2] and dls.train_ds.y[0, :7].tolist() == [-100]*6+[1]
    assert dls.target.decode(dls.train_ds.y[0])[5:7] == [None, 1]
    again = TargetPrep(steps, 'dense', [12]*40)
    np.testing.assert_array_equal(again.encode(dls.train_ds.y[:1].numpy(), [12]), dls.train_ds.y[:1])

def test_only_marks_is_no_label():
    with pytest.raises(ValueError, match='every step is unlabelled'): seq_dls(x, np.full((40, 12), -100), kind='dense')

# 42: the layout of rows on disk

def on_disk(tmp_path, x):
    np.save(tmp_path/'m.npy', x)
    return np.load(tmp_path/'m.npy', mmap_mode='r')

def test_channels_first_on_disk_is_named(tmp_path):
    m = on_disk(tmp_path, r.randn(40, 3, 50))
    with pytest.raises(ValueError, match=r'(?s)\(.*C, L\).*NCL'): seq_dls(m, y)
    with pytest.raises(ValueError, match="(?s)layout='NCL'.*disk.*transpose"): seq_dls(m, y, layout='NCL')
    with pytest.raises(ValueError, match="layout='x' is not known; accepted: 'auto'"): seq_dls(m, y, layout='x')
    assert seq_dls(m, y, layout='NLC').prep.d_in == 50
    learn = seq_dls(r.randn(40, 3, 50), y, layout='NCL')
    with pytest.raises(ValueError, match="layout='NCL'"): learn.test_dl(m)

@pytest.mark.parametrize('shape', ((40, 1, 12), (40, 5, 1), (40, 12)))
def test_layouts_that_are_the_same_in_memory_order_are_read_on_disk(tmp_path, shape):
    x = r.randn(*shape).astype('f4')
    a, b = seq_dls(x, y, layout='NCL'), seq_dls(on_disk(tmp_path, x), y, layout='NCL')
    assert a.prep.d_in == b.prep.d_in
    np.testing.assert_array_equal(a.train_ds.x, b.train_ds.batch(np.arange(32))[0])

def test_rows_of_unequal_length_on_disk_have_steps_first(tmp_path):
    ragged = Ragged(r.randn(400, 3), np.arange(0, 401, 10))
    assert seq_dls(ragged, y).prep.d_in == 3
    with pytest.raises(ValueError, match="layout='NCL'"): seq_dls(ragged, y, layout='NCL')
    with pytest.raises(ValueError, match='NCL'): seq_dls(Ragged(r.randn(400, 30), np.arange(0, 401, 10)), y)
    with pytest.raises(ValueError, match='row 2 of x is empty'): seq_dls(Ragged(r.randn(3), [0, 1, 2, 2, 3]), list('abab'))

# tokenizers

texts = ['the cat sat.', 'a dog, too!']*20
class Mapping(UserDict):
    "What transformers' BatchEncoding is."
class HF:
    def __call__(self, s): return Mapping(input_ids=[len(w) for w in s.split()], attention_mask=[1]*len(s.split()))

@pytest.mark.parametrize('tokenizer', (HF(), lambda s: dict(HF()(s)), lambda s: {k: np.array(v) for k, v in HF()(s).items()}, lambda s: torch.tensor(HF()(s)['input_ids'])), ids=('UserDict', 'dict', 'array', 'tensor'))
def test_a_mapping_is_read_by_its_ids(tokenizer):
    dls = seq_dls(texts, y, tokenizer=tokenizer, valid=[0, 1])
    assert sorted(dls.prep.symbols[2:]) == [1, 3, 4]
    assert dls.prep.decode(*(o[0] for o in dls.test_dl(['the cat sat.']).dataset.batch([0])[:2])) == [3, 3, 4]

@pytest.mark.parametrize('bad,words', ((lambda s: dict(ids=[1]), 'input_ids'), (lambda s: None, 'NoneType'), (lambda s: [[1, 2]], 'list'), (lambda s: np.array([[1, 2]]), 'list'), (lambda s: 3, 'int'), (lambda s: [None], 'NoneType'),
    (lambda s: {'a', 'b'}, 'set'), (lambda s: torch.tensor([[1]]), 'list'), (lambda s: Mapping(input_ids=[[1, 2]]), 'list'), (3, 'int'), ([str.split], 'list')))
def test_a_tokenizer_that_gives_no_symbols_is_named(bad, words):
    with pytest.raises(TypeError, match=f'tokenizer.*{words}'): seq_dls(texts, y, tokenizer=bad)

def test_what_tokenizers_may_return_is_read_as_before():
    for tokenizer, want in ((str.lower, list('ab a')), (str.split, ['AB', 'A']), (lambda s: iter(s), list('AB A')), (lambda s: zip(s, s[1:]), [('A', 'B'), ('B', ' '), (' ', 'A')]), (str.encode, list(b'AB A')), (None, list('AB A')), (tuple, list('AB A'))):
        rows = read_rows(['AB A'], tokenizer=tokenizer)
        assert [rows.symbols[i] for i in rows.x[0]] == want

def test_tokenizers_by_name(tmp_path):
    for name, want in (('char', list('né, a')), ('byte', list('né, a'.encode())), ('word', ['né', ',', 'a'])):
        rows = read_rows(['né, a'], tokenizer=name)
        assert [rows.symbols[i] for i in rows.x[0]] == want
    for x in texts, np.zeros((40, 3)):
        with pytest.raises(ValueError, match="tokenizer='words' is not known; accepted: 'char', 'byte', 'word'"): seq_dls(x, y, tokenizer='words')
    with pytest.raises(ValueError, match='row 1 of x is empty'): read_rows(['a', ' '], tokenizer='word')
    learn = sp_learner(seq_dls(texts, y, tokenizer='word', bs=8), 's4d', size='tiny', seed=0)
    learn.export(tmp_path/'m.pkl')
    again = load_learner(tmp_path/'m.pkl')
    assert again.dls.prep.read_kw['tokenizer'] == 'word'
    assert torch.equal(again.get_preds(dl=again.dls.test_dl(texts[:3]))[0], learn.get_preds(dl=learn.dls.test_dl(texts[:3]))[0])

def test_a_tokenizer_of_transformers():
    tokenizers, transformers = pytest.importorskip('tokenizers'), pytest.importorskip('transformers')
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({'[UNK]': 0, 'the': 1, 'cat': 2}, unk_token='[UNK]'))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    rows = read_rows(['the cat', 'the dog sat'], tokenizer=transformers.PreTrainedTokenizerFast(tokenizer_object=words))
    assert rows.symbols == [0, 1, 2] and rows.x.tolist() == [[1, 2, -1], [1, 0, 0]]

# containers of other libraries

words = [['on', 'off'], ['on', 'hold', 'on'], ['off']]
@pytest.mark.parametrize('wrap', (lambda o: np.array(o, object), pd.Series, lambda o: pd.Series(o, dtype=object), lambda o: pd.Series(o).astype('category'), lambda o: pd.Index(o)))
def test_rows_of_text_are_token_rows(wrap):
    want, got = read_rows(words), read_rows([wrap(o) for o in words])
    assert got.symbols == want.symbols == ['hold', 'off', 'on']
    np.testing.assert_array_equal(got.x, want.x)
    column = np.empty(3, object); column[:] = [wrap(o) for o in words]
    np.testing.assert_array_equal(read_rows(column).x, want.x)

@pytest.mark.parametrize('bad', (['on', None], ['on', 3], [None]))
def test_rows_that_are_not_all_text_are_named(bad):
    with pytest.raises(TypeError, match='row 1 of x .*object'): read_rows([np.array(['a', 'b'], object), np.array(bad, object)])
    with pytest.raises(ValueError, match='row 1 of x is empty'): read_rows([np.array(['a', 'b'], object), np.array([], object)])

def test_text_and_numbers_do_not_mix():
    with pytest.raises(TypeError, match='row 1 of x .*int64.*text'): read_rows([['a', 'b'], [1, 2]])

class Column:
    "What `ds['text']` of Hugging Face's datasets is: a sequence, read when sliced."
    def __init__(self, o): self.o = o
    def __len__(self): return len(self.o)
    def __getitem__(self, i): return self.o[i]
Column.__module__ = 'datasets.arrow_dataset'

@pytest.mark.parametrize('texts', (['ab', 'c', 'ba', 'b']*10, [[1., 2], [3., 4]]*20, [[5, 6], [7]]*20))
def test_columns_of_datasets_are_what_they_hold(texts):
    want = seq_dls(texts, y)
    columns = [lambda o: Column(o)]
    try: import datasets; columns.append(lambda o: datasets.Dataset.from_dict(dict(o=o))['o'])
    except ImportError: pass
    for wrap in columns:
        for labels in y, wrap(y), wrap([0., .5]*20), wrap([['a'], ['a', 'b']]*20):
            got = seq_dls(wrap(texts), labels)
            assert torch.equal(got.train_ds.x, want.train_ds.x) and got.kind in ('class', 'regression', 'multilabel')
        assert torch.equal(want.test_dl(wrap(texts), wrap(y)).dataset.y, want.test_dl(texts, y).dataset.y)
        steps = wrap([[0]*len(o) for o in texts])
        assert seq_dls(texts, steps, kind='dense').kind == 'dense'

# time stamps

dt0, utc, plus = datetime(2026, 1, 1), timezone.utc, timezone(timedelta(hours=2))
hours = [0, 1, 3, 7]
@pytest.mark.parametrize('make', (lambda: pd.DatetimeIndex([dt0+timedelta(hours=h) for h in hours]).tz_localize('Europe/Berlin'), lambda: pd.Series([dt0+timedelta(hours=h) for h in hours]).dt.tz_localize('UTC'),
    lambda: [dt0+timedelta(hours=h) for h in hours], lambda: [dt0.replace(tzinfo=plus)+timedelta(hours=h) for h in hours], lambda: [(dt0+timedelta(hours=h)).replace(tzinfo=utc).astimezone((utc, plus)[h % 2]) for h in hours],
    lambda: [timedelta(hours=h) for h in hours], lambda: [pd.Timestamp(dt0+timedelta(hours=h)) for h in hours], lambda: np.array([dt0+timedelta(hours=h) for h in hours], 'M8[ns]'), lambda: pd.to_timedelta(hours, 'h'),
    lambda: [dt0+timedelta(hours=h) for h in hours]+[None]*3, lambda: [dt0+timedelta(hours=h) for h in hours]+[pd.NaT]*3))
def test_dates_of_any_kind_are_seconds(make):
    t = make()
    rows = read_rows(np.zeros((2, len(t))), lengths=[4, 4], times=[t, t])
    assert rows.times[:, :4].tolist() == [[3600.*h for h in hours]]*2

def test_clocks_that_change_are_read_in_utc():
    t = pd.date_range('2026-10-25', periods=5, freq='h', tz='Europe/Berlin')                 # 2 o'clock comes twice
    assert np.diff(read_rows(np.zeros((1, 5)), times=[t]).times).tolist() == [[3600.]*4]
    ns = pd.DatetimeIndex(['2026-01-01 00:00:00.000000001', '2026-01-01 00:00:00.000000004'], tz='UTC')
    assert read_rows(np.zeros((1, 2)), times=[ns]).times[0, 1] == pytest.approx(3e-9)

@pytest.mark.parametrize('bad,error,words', (([dt0, None], ValueError, 'row 0 of times is missing at step 1'), ([dt0, pd.NaT], ValueError, 'missing at step 1'), ([None, dt0], ValueError, 'missing at step 0'), ([dt0+timedelta(1), dt0], ValueError, 'backwards at step 1'),
    ([dt0, dt0.replace(tzinfo=utc)], TypeError, 'row 0 .*time zone'), (['a', 'b'], TypeError, 'numbers or dates'), ([dt0, 3], TypeError, 'numbers or dates'), ([dt0, timedelta(1)], TypeError, 'numbers or dates; row 0')))
def test_dates_that_cannot_be_read_are_named(bad, error, words):
    with pytest.raises(error, match=words): read_rows(np.zeros((1, 2)), times=[bad])

# rows on disk are named by their place in the user's array

def test_an_infinite_value_on_disk_is_named_by_its_row(tmp_path):
    x = r.randn(40, 12, 2); x[33, 4, 1] = np.inf
    rows = read_rows(on_disk(tmp_path, x))
    rows.block = 100
    for read in (lambda: list(rows.blocks()), lambda: rows.read([5, 33, 1]), lambda: rows.take([33, 2]).read([1, 0]), lambda: seq_dls(on_disk(tmp_path, x), y, valid=[0, 1])):
        with pytest.raises(ValueError, match='row 33 of x holds an infinite value'): read()
    with pytest.raises(ValueError, match='row 33 of x holds an infinite value'): read_rows(x)

def test_a_value_on_disk_too_far_from_training_is_named_by_its_row(tmp_path):
    x = r.randn(40, 12, 2)*1e-30; x[33, 4, 1] = 1e30
    dls = seq_dls(on_disk(tmp_path, x), y, valid=[2, 33])
    with pytest.raises(ValueError, match='row 33 of x is too far'): dls.valid_ds.batch([0, 1])

# label collections of equal length

def test_label_lists_of_equal_length_are_collections_when_asked():
    lists = [[3, 7], [7, 9]]*20
    for o in lists, [tuple(s) for s in lists], [np.array(s) for s in lists], pd.Series(lists):
        a = TargetPrep(o, 'multilabel')
        assert list(a.vocab) == [3, 7, 9] and a.encode(o[:2]).tolist() == [[1, 1, 0], [0, 1, 1]]
    assert list(TargetPrep([[0, 1], [1, 1]], 'multilabel').vocab) == list(TargetPrep([[0, 1], [1, 1]]).vocab) == [0, 1]
    assert TargetPrep([[0, 1], [1, 1]], 'multilabel').encode([[0, 1], [1, 1]]).tolist() == [[0, 1], [1, 1]]           # a matrix of 0 and 1 stays one
    with pytest.raises(ValueError, match='0 and 1'): TargetPrep(np.array(lists), 'multilabel')
    assert TargetPrep([[.5, 1.5], [1., 2.]]).kind == 'regression'

def test_a_model_of_label_lists_takes_lists_of_equal_length():
    dls = seq_dls(x, [[3, 7], [7], [9, 3, 7], []]*10)
    assert dls.test_dl(x[:2], [[3, 7], [3, 7]]).dataset.y.tolist() == [[1, 1, 0]]*2
    assert dls.test_dl(x[:2], [[3], [9]]).dataset.y.tolist() == [[1, 0, 0], [0, 0, 1]]
    assert dls.test_dl(x[:2], [[], []]).dataset.y.tolist() == [[0, 0, 0]]*2
    binary = seq_dls(x, [[0, 1], [1], [0], []]*10)
    assert binary.test_dl(x[:2], [[0, 1], [1, 0]]).dataset.y.tolist() == [[1, 1]]*2                                     # names, not a matrix
    with pytest.raises(ValueError, match='collection'): dls.test_dl(x[:2], np.array([[3, 7], [3, 7]]))
    with pytest.raises(ValueError, match='not among the known.*8'): dls.test_dl(x[:2], [[3, 8], [3, 7]])

# names of columns

def test_columns_of_a_frame_name_the_labels():
    frame = pd.DataFrame(dict(rain=[0, 1]*20, wind=[1, 1, 0, 0]*10))
    t = TargetPrep(frame)
    assert t.kind == 'multilabel' and list(t.vocab) == t.names == ['rain', 'wind'] and t.decode(torch.tensor([1, 0])) == ['rain']
    assert t.encode(frame.iloc[:2]).tolist() == t.encode(frame.iloc[:2][['wind', 'rain']]).tolist() == t.encode(frame.iloc[:2].to_numpy()).tolist() == [[0, 1], [1, 1]]
    with pytest.raises(ValueError, match="'wind'"): t.encode(frame[['rain']].assign(snow=0))
    assert TargetPrep(frame.to_numpy(), names=label_names(frame)).vocab == ['rain', 'wind']                              # what seq_dls does
    n = TargetPrep(frame+.5)
    assert n.kind == 'regression' and n.vocab is None and n.names == ['rain', 'wind'] and n.encode(frame[['wind', 'rain']][:1]).tolist() == [[0, 1]]
    assert class_weights({'rain': 3.}, t.encode(frame), t).tolist() == [3., 1.]

def test_labels_without_names_are_numbered_as_before():
    m = np.array([[0, 1], [1, 1]]*20)
    for o in m, pd.DataFrame(m), pd.DataFrame(m, columns=['u', 'u']): assert list(TargetPrep(o).vocab) == [0, 1]
    assert TargetPrep(m).names is None and list(TargetPrep(pd.DataFrame(dict(u=y))).vocab) == ['a', 'b'] and TargetPrep(y, names=['u']).vocab == ['a', 'b']
    steps = pd.DataFrame(r.randint(0, 2, (40, 12)), columns=[f't{i}' for i in range(12)])
    assert list(TargetPrep(steps, 'dense', [12]*40, names=label_names(steps)).vocab) == [0, 1]
    for o in (m, y, None, [['a'], []]): assert label_names(o) is None

@pytest.mark.parametrize('names', (['u'], ['u', 'v', 'w'], ['u', 'u']))
def test_names_that_do_not_fit_are_named(names):
    with pytest.raises(ValueError, match='names must be 2 different'): TargetPrep(np.eye(2), names=names)

# what y may have been meant to be

def test_labels_of_steps_without_kind_are_told_of_it():
    for o in r.randint(0, 3, (40, 12)), np.array([['a', 'b']*6]*40):
        with pytest.raises(ValueError, match="kind='dense'"): seq_dls(x, o)
        with pytest.raises(ValueError, match="kind='dense'"): seq_dls(x, o, kind='class')

def test_whole_floats_are_asked_about():
    for o in [1., 0.]*20, pd.Series([0., 1, 2, 9]*10), torch.tensor([3., 4.]*20):
        with pytest.warns(UserWarning, match="(?s)regression.*kind='class'"): assert seq_dls(x, o).kind == 'regression'
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for o, kind in (([.5, 1.]*20, 'auto'), (np.arange(40.), 'auto'), ([1., 0.]*20, 'regression'), ([1., 0.]*20, 'class'), ([1, 0]*20, 'auto'), (np.zeros((40, 1)), 'auto')): TargetPrep(o, kind)
