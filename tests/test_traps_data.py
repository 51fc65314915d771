"TRAPS 42, 43, 45, 53, 54, 65: own data in, labels of every shape, the same answers after saving."
import inspect, pickle
import pytest
from toys import *
from lrpt_nb.core import rel_err
from lrpt_nb.learner import load_learner
from lrpt_nb.models import pools
from lrpt_nb.objectives import Masked

each_arch = pytest.mark.parametrize('arch', archs)
each_input = pytest.mark.parametrize('x', inputs)
each_target = pytest.mark.parametrize('y', targets)
each_way = pytest.mark.parametrize('causal', ways.values(), ids=ways)

# 42: own arrays

@each_arch
@each_input
@each_way
def test_own_data_to_predictions(arch, x, causal):
    x, more = make_x(x)
    y = make_y('strings')
    dls = seq_dls(x, y, bs=8, **more)
    learn = sp_learner(dls, arch, size='tiny', causal=causal, seed=0)
    with learn.no_bar():
        learn.self_pretrain(1)
        learn.fit_one_cycle(1, 1e-3)
    new = items(x, more.get('lengths'))[:4]
    label, index, probs = learn.predict(new[0])
    preds = learn.get_preds(dl=dls.test_dl(new))[0]
    assert label in ('no', 'yes') and dls.vocab[int(index)] == label and probs.sum().item() == pytest.approx(1, abs=1e-5)
    assert preds.shape == (4, 2) and torch.isfinite(preds).all() and rel_err(probs, preds[0]) < 1e-4
    assert learn.embed(new).shape == (4, 32)

channels_first = np.random.default_rng(0).normal(size=(20, 3, 40))
@pytest.mark.parametrize('wrap', (lambda o: o, torch.tensor, list, lambda o: [torch.tensor(r) for r in o], lambda o: o.tolist(), lambda o: [r[:, :30+i] for i, r in enumerate(o)]),
                         ids=('array', 'tensor', 'list', 'list of tensors', 'nested lists', 'unequal list'))
def test_channels_first_by_mistake_is_named(wrap):
    y = make_y('strings')
    with pytest.raises(ValueError, match=r'(?s)\(.*C, L\).*NCL'): seq_dls(wrap(channels_first), y)
    dls = seq_dls(wrap(channels_first), y, layout='NCL')
    assert dls.prep.d_in == 3 and 30 < dls.prep.max_len <= 40
    good = seq_dls(channels_first.transpose(0, 2, 1), y)
    with pytest.raises(ValueError, match='channels|NCL'): good.test_dl(wrap(channels_first))

def test_more_channels_than_steps_when_meant():
    x = channels_first
    assert seq_dls(x, None, layout='NLC').prep.d_in == 40
    learn = tiny(seq_dls(np.random.default_rng(0).normal(size=(20, 12, 3)), make_y('strings')))
    for new in (np.zeros((5, 2, 3)), [np.zeros((2, 3))]*5, torch.zeros(5, 1, 3)):          # short rows for a model that knows its channels
        assert learn.get_preds(dl=learn.dls.test_dl(new))[0].shape == (5, 2) and learn.embed(new).shape == (5, 16)

@pytest.mark.parametrize('bad,error,words', (
    (np.zeros(20), ValueError, 'N, L'), (np.zeros(20, int), ValueError, 'N, L'), (np.zeros((20, 2, 2, 2)), ValueError, 'N, L'), (np.zeros((0, 4)), ValueError, 'empty'),
    ([], ValueError, 'empty'), (np.zeros((20, 0)), ValueError, 'step'), (np.zeros((20, 0), int), ValueError, 'step'), (np.zeros((20, 4, 0)), ValueError, 'channel'),
    ([np.zeros((3, 2))]*19+[np.zeros((0, 2))], ValueError, 'row 19'), (['ab']*19+[''], ValueError, 'row 19'), (np.zeros((20, 4), complex), TypeError, 'complex'),
    (np.full((20, 4), np.inf), ValueError, 'infinite'), ([np.zeros((3, 2))]*19+[np.zeros((3, 4))], ValueError, 'row 19'), (['ab']*19+[np.zeros(3)], TypeError, 'mixes'),
    ('abc', TypeError, 'str'), (3, TypeError, 'int'), (None, TypeError, 'NoneType'), (dict(a=1), TypeError, 'dict'), ([1, 2, 3], ValueError, 'single numbers'),
    (np.zeros((20, 4), 'M8[s]'), TypeError, 'datetime')))
def test_data_that_cannot_be_read_says_why(bad, error, words):
    with pytest.raises(error, match=words): seq_dls(bad, None)

@pytest.mark.parametrize('bad,words', ((np.zeros(19, int), '19'), (np.full(20, 13), '1 ... 12'), (np.zeros(20, int), '1 ... 12'), (np.ones(20), 'integers'), (np.ones((20, 1), int), 'integers')))
def test_lengths_that_do_not_fit_say_why(bad, words):
    with pytest.raises(ValueError, match=words): seq_dls(make_x('array3')[0], None, lengths=bad)

@pytest.mark.parametrize('settings,words', ((dict(valid=[]), 'valid'), (dict(valid=None), 'valid'), (dict(valid=3), 'valid'), (dict(valid=1.), 'valid'), (dict(valid=[20]), 'row 20'), (dict(valid=[0, 0]), 'twice'),
    (dict(valid=[0, 1], test=[1, 2]), 'both'), (dict(valid=np.ones(20, bool)), 'no training rows'), (dict(frac=0.), 'frac'), (dict(frac=1.5), 'frac'), (dict(bs=0), 'bs'), (dict(kind='x'), 'kind'), (dict(x_kind='x'), 'x_kind'),
    (dict(layout='x'), 'layout'), (dict(valid=(np.zeros((2, 12, 4)), None)), 'channels'), (dict(test=[]), 'test')), ids=lambda o: '-'.join(o) if isinstance(o, dict) else '')
def test_settings_that_do_not_fit_are_named(settings, words):
    with pytest.raises(ValueError, match=words): seq_dls(make_x('array3')[0], make_y('strings'), **settings)

def test_row_numbers_are_taken_before_fractions():
    for seed in range(8):
        dls = seq_dls(np.repeat(np.arange(20.)[:, None], 4, 1), None, valid=[0, 1, 2], test=0.3, seed=seed, normalize=False)
        rows = [set(dl.dataset.x[:, 0, 0].int().tolist()) for dl in dls.loaders]
        assert rows[1] == {0, 1, 2} and len(rows[2]) == 5 and set.union(*rows) == set(range(20)) and sum(map(len, rows)) == 20

def test_a_list_pair_of_validation_rows_is_a_pair():
    x, y = make_x('array3')[0], make_y('strings')
    assert len(seq_dls(x, y, valid=[x[:5], y[:5]]).valid.dataset) == 5

@pytest.mark.parametrize('kind', (np.int64, np.uint8, np.int32))
def test_numpy_integers_are_integers(kind, tmp_path):
    dls = toy_dls(seed=0, bs=kind(8))
    dls = seq_dls(make_x('array3')[0], make_y('strings'), seed=kind(3), bs=kind(8))
    learn = sp_learner(dls, 'transformer', seed=kind(3), d_model=kind(16), n_layers=kind(1))
    with learn.no_bar(): learn.self_pretrain(kind(1), save_to=tmp_path/'a'); learn.fit(int(kind(1)))
    assert torch.equal(dls.valid.dataset.x, seq_dls(make_x('array3')[0], make_y('strings'), seed=3).valid.dataset.x)

def test_numpy_settings_can_be_saved(tmp_path):
    learn = tiny(toy_dls(), objective=Masked(np.float32(.3), span=np.int64(2)))
    with learn.no_bar(): learn.self_pretrain(1, save_to=tmp_path/'a')

def test_masked_arrays_are_missing_values():
    x = make_x('array3')[0]
    x = np.ma.array(x, mask=x > 1)
    assert torch.equal(seq_dls(x, None).train.dataset.x.isnan(), seq_dls(x.filled(np.nan), None).train.dataset.x.isnan())

@pytest.mark.parametrize('dtype', (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int16, torch.uint8))
def test_tensors_of_any_type_are_read(dtype):
    x = (10*torch.rand(20, 12, 2)).to(dtype)
    want = seq_dls(x.to(torch.float32), None).train.dataset.x
    for o in (x, list(x), x.numpy() if dtype != torch.bfloat16 else x):
        got = seq_dls(o, None).train.dataset.x
        assert got.dtype == torch.float32 and rel_err(got, want) < 1e-5

def test_fastcores_lists_are_lists():
    from fastcore.foundation import L
    x, y = make_x('ragged')[0], make_y('strings')
    assert torch.equal(seq_dls(L(x), L(list(y)), valid=L(1, 2)).train.dataset.x, seq_dls(x, y, valid=[1, 2]).train.dataset.x)

def test_values_too_far_to_be_scaled_are_named():
    learn = tiny(seq_dls(1e-30*make_x('array3')[0], make_y('strings')))
    for ask in (lambda x: learn.dls.test_dl(x), learn.embed):
        with pytest.raises(ValueError, match='row 1'): ask([np.zeros((12, 3)), np.full((12, 3), 1e30)])

@pytest.mark.parametrize('wrap', (lambda o: o, list, torch.tensor), ids=('array', 'list', 'tensor'))
def test_a_small_signal_on_a_large_offset_survives_or_is_mentioned(wrap):
    import warnings
    x = 1e6+1e-3*np.random.default_rng(0).normal(size=(20, 12, 1))          # float64 holds it, float32 does not
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        dls = seq_dls(wrap(x), None, valid=[0])
    z = dls.train.dataset.x
    kept = z.dtype == torch.float32 and np.allclose(z.numpy(), (x[1:]-x[1:].mean())/x[1:].std(), atol=1e-3)
    assert kept or any('precision' in str(o.message) for o in said), 'the signal was rounded away without a word'
    if kept: assert np.allclose(dls.prep.decode(z[0]), x[1], atol=1e-5, rtol=0)

# 43: few rows

@each_arch
@pytest.mark.parametrize('x', few_inputs)
@pytest.mark.parametrize('y', few_targets)
@pytest.mark.parametrize('n', (2, 5))
def test_fewer_rows_than_a_batch_train(arch, x, y, n):
    rows, more = make_x(x, n)
    learn = tiny(seq_dls(rows, make_y(y, n), **more), arch)                               # default batch size
    before = weights(learn.model)
    with learn.no_bar(): learn.self_pretrain(1); learn.fit(1)
    assert len(learn.pretrain_recorder.losses) == 1 and len(learn.recorder.losses) == 1 and np.isfinite(learn.recorder.losses).all()
    assert not same(before, weights(learn.model)) and len(learn.get_preds()[0]) == len(learn.dls.valid.dataset)

@pytest.mark.parametrize('x', few_inputs)
@pytest.mark.parametrize('more_rows', (-1, 0, 1))
def test_no_row_is_dropped_around_the_batch_size(x, more_rows):
    n = 16+more_rows
    rows, more = make_x(x, n+1)
    dls = seq_dls(rows, make_y('number', n+1), valid=[0], bs=16, **more)
    learn, seen = tiny(dls), [0]
    def count(cb):
        if cb.training: seen[0] += len(cb.yb[0])
    with learn.no_bar(): learn.fit(1, cbs=OnEvent(before_batch=count))
    assert seen[0] == n and len(dls.train) == (2 if more_rows > 0 else 1) and np.isfinite(learn.recorder.losses).all()

@each_arch
@pytest.mark.parametrize('y', targets)
def test_one_validation_row(arch, y):
    learn = tiny(toy_dls('ragged', y, valid=[0]), arch)
    with learn.no_bar():
        learn.self_pretrain(1)
        if y == 'none': return
        learn.fit(1)
    assert np.isfinite(learn.recorder.values[-1][1])
    preds, want = learn.get_preds()
    assert len(preds) == 1 and len(want) == 1
    learn.show_results()

def test_no_rows_is_an_error(tmp_path):
    learn = tiny(toy_dls())
    learn.export(tmp_path/'m.pkl')
    bare = load_learner(tmp_path/'m.pkl')                     # holds no rows
    for use in (lambda: bare.fit(1), lambda: bare.fit_one_cycle(1), lambda: bare.self_pretrain(1), lambda: bare.validate(), lambda: bare.embed(), lambda: bare.show_results(), lambda: bare.dls.show_batch()):
        with pytest.raises(ValueError, match='no rows'), bare.no_bar(): use()
    bare.dls = toy_dls()                                      # and goes on with some
    with bare.no_bar(): bare.self_pretrain(1); bare.fit(1)

# 45: shapes of labels

_kinds = dict(ints=('class', 3, ()), strings=('class', 2, ()), bools=('class', 2, ()), multihot=('multilabel', 4, (4,)), lists=('multilabel', 3, (3,)),
              number=('regression', 1, ()), float64=('regression', 1, ()), number1=('regression', 1, (1,)), number3=('regression', 3, (3,)), none=('none', 0, ()))

@each_arch
@each_target
def test_labels_get_the_right_head_and_loss(arch, y):
    dls = toy_dls('ragged', y)
    kind, c, shape = _kinds[y]
    assert (dls.kind, dls.c) == (kind, c)
    learn = tiny(dls, arch)
    if kind == 'none':
        with pytest.raises(ValueError, match='no labels'): learn.fit(1)
        return
    with learn.no_bar(): learn.fit_one_cycle(2, 1e-3)
    preds, want, decoded = learn.get_preds(with_decoded=True)
    n = len(dls.valid.dataset)
    assert preds.shape == ((n, c) if kind in ('class', 'multilabel') else (n, *shape)) and want.shape == (n, *shape)
    assert np.isfinite(learn.recorder.losses).all() and all(np.isfinite(o) for o in learn.validate())
    assert learn.dls.train.one_batch()[-1].dtype == (torch.int64 if kind == 'class' else torch.float32)
    losses = learn.get_preds(with_loss=True)[2]
    assert losses.shape == (n,)
    assert losses.mean().item() == pytest.approx(learn.validate()[0], rel=1e-4)
    if kind == 'regression':
        wrong = want[:, None] if shape == () else want[:, 0] if shape == (1,) else want[:, :2]
        with pytest.raises(ValueError, match='shape'): learn.loss_func(preds, wrong)
        std = learn.dls.target.std
        assert learn.loss_func(preds, want).item() == pytest.approx(((preds-want)/std).square().mean().item(), rel=1e-4)

@each_target
def test_labels_come_back_as_they_were_given(y):
    rows, labels = make_x('ragged')[0], make_y(y)
    if labels is None: return
    dls = seq_dls(rows, labels, valid=[0, 1])
    t = dls.target
    back = [t.decode(o) for o in t.encode(labels)]
    plain = labels.tolist() if hasattr(labels, 'tolist') else list(labels)
    if y == 'multihot': plain = [[i for i, on in enumerate(o) if on] for o in plain]
    if _kinds[y][0] == 'regression': assert np.allclose(back, plain, rtol=1e-6)
    else: assert back == plain and all(type(a) is type(b) for a, b in zip(back, plain))

@pytest.mark.parametrize('y', ('number', 'float64', 'number1', 'number3'))
def test_regression_keeps_the_users_units(y):
    x = np.random.default_rng(0).normal(size=(40, 6, 1)).astype('float32')
    base = make_y(y, 40)
    scaled = 1e4*(base if isinstance(base, torch.Tensor) else np.asarray(base))+1e6
    def run(labels):
        learn = tiny(seq_dls(x, labels, bs=8))
        with learn.no_bar(): learn.fit(1)
        return learn.get_preds()[0].double(), learn.recorder.losses
    (a, la), (b, lb) = run(base), run(scaled)
    assert torch.allclose(b, 1e4*a+1e6, rtol=1e-4, atol=30) and np.allclose(la, lb, rtol=1e-2)

_frame = pytest.importorskip('pandas')
def _series(o, **k): return _frame.Series(o, index=range(100, 80, -1), **k)
@pytest.mark.parametrize('labels,kind,vocab', (
    (_series(list('ab')*10), 'class', ['a', 'b']), (_series(list('ab')*10, dtype='category'), 'class', ['a', 'b']), (_series([0, 2]*10), 'class', [0, 2]), (_series([0, 2]*10, dtype='Int64'), 'class', [0, 2]),
    (_series([.5, 2]*10), 'regression', None), (_series([True, False]*10), 'class', [False, True]), (_series([['a'], ['a', 'b']]*10), 'multilabel', ['a', 'b']), ([{'a'}, {'b'}]*10, 'multilabel', ['a', 'b']),
    ([{1}, {2}]*10, 'multilabel', [1, 2]), ([('a',), ('b',)]*10, 'multilabel', ['a', 'b']), ([[], ['a']]*10, 'multilabel', ['a']), ([np.str_('u'), np.str_('v')]*10, 'class', ['u', 'v']), (np.array([1, 2]*10, object), 'class', [1, 2]),
    (np.array([.5, 1.5, 2.25, 7.]*5, object), 'regression', None), ([torch.tensor(1), torch.tensor(0)]*10, 'class', [0, 1]), (torch.randn(20, requires_grad=True), 'regression', None), (torch.randn(20).bfloat16(), 'regression', None),
    (torch.tensor([0, 1]*10), 'class', [0, 1]), (np.ones(20, int), 'class', [1]), ([1., 0.]*10, 'regression', None), (np.array([[0], [1]]*10), 'class', [0, 1]), (np.array([0, 1]*10, np.uint8), 'class', [0, 1]),
    (np.array([[0, 1, 1], [1, 0, 0]]*10, bool), 'multilabel', [0, 1, 2])))
def test_labels_of_many_types(labels, kind, vocab):
    dls = seq_dls(make_x('ragged')[0], labels, bs=8)
    assert dls.kind == kind and (dls.vocab is None if vocab is None else list(dls.vocab) == vocab)
    learn = tiny(dls)
    with learn.no_bar(): learn.fit(1)
    assert np.isfinite(learn.recorder.losses).all()
    learn.predict(make_x('ragged')[0][0])

@pytest.mark.parametrize('bad,words', ((np.zeros(19), '19'), (3, 'label a row'), ('a'*20, 'y'), (np.zeros((20, 2, 2)), 'y'), ([.5, np.nan]*10, 'row 1'), ([.5, np.inf]*10, 'row 1'), (['a', None]*10, 'row 1'),
    (np.array(['a', np.nan]*10, object), 'row 1'), (np.array([1., np.nan]*10, object), 'row 1'), (np.array(['2020-01-01']*20, 'M8[D]'), 'datetime'), ([1e300, 1.]*10, 'row 0'), (np.zeros((20, 0)), 'y'), ([[]]*20, 'y')))
def test_labels_that_cannot_be_read_say_why(bad, words):
    with pytest.raises((ValueError, TypeError), match=words): seq_dls(make_x('ragged')[0], bad)

@pytest.mark.parametrize('bad', (['a', None]*10, [1., np.nan]*10, np.array([1, np.nan]*10)), ids=('none', 'nan list', 'nan array'))
def test_missing_class_labels_are_named(bad):
    with pytest.raises(ValueError, match='row 1'): seq_dls(make_x('ragged')[0], bad, kind='class')

# 53: the same rows, the same answers

@each_arch
@each_input
@each_way
def test_the_same_rows_get_the_same_answers(arch, x, causal, tmp_path):
    kind, (x, more) = x, make_x(x)
    learn = tiny(seq_dls(x, make_y('strings'), bs=8, **more), arch, causal=causal, dropout=0.2)
    with learn.no_bar(): learn.self_pretrain(1); learn.fit(1)
    new, more = make_x(kind, 5, seed=11)
    new = items(new, more.get('lengths'))
    def ask(l, rows): return l.get_preds(dl=l.dls.test_dl(rows))[0]
    want = ask(learn, new)
    assert all(torch.equal(ask(learn, new), want) for _ in range(2))                       # three times
    learn.export(tmp_path/'m.pkl')
    loaded = load_learner(tmp_path/'m.pkl')
    for l in (learn, loaded, pickle.loads(pickle.dumps(learn))):
        assert rel_err(ask(l, new), want) < 1e-6
        crowd = ask(l, new*40)
        assert rel_err(crowd, want.repeat(40, 1)) < 1e-5                                   # in a crowd
        for i, row in enumerate(new):                                                      # alone, by three doors
            assert rel_err(ask(l, [row])[0], want[i]) < 1e-5
            label, index, probs = l.predict(row)
            assert rel_err(probs, want[i]) < 1e-5 and label == l.dls.vocab[int(want[i].argmax())]
    with learn.no_bar(): learn.fit(1)                                                      # exporting left a learner that goes on

def test_padded_arrays_and_lists_get_the_same_answers():
    (x, more), y = make_x('padded'), make_y('strings')
    learn = tiny(seq_dls(x, y, bs=8, **more))
    a = learn.get_preds(dl=learn.dls.test_dl(x, lengths=more['lengths']))[0]
    junk = np.where((np.arange(12) < more['lengths'][:, None])[..., None], x, 1e6)
    for rows, kw in ((items(x, more['lengths']), {}), (junk, more), (torch.tensor(junk), more)):
        assert rel_err(learn.get_preds(dl=learn.dls.test_dl(rows, **kw))[0], a) < 1e-5
        assert rel_err(learn.embed(rows, **kw), learn.embed(x, more['lengths'])) < 1e-5

def test_unknown_symbols_are_unknown():
    learn = tiny(toy_dls('strings'))
    a, b = (learn.get_preds(dl=learn.dls.test_dl([s, 'abcd']))[0] for s in ('aXb', 'aYb'))
    assert torch.equal(a, b) and torch.isfinite(a).all()

def test_answers_do_not_depend_on_what_else_is_asked():
    "Scaling and vocabulary come from training rows, not from the batch at hand."
    for kind in few_inputs:
        learn = tiny(toy_dls(kind))
        new = items(make_x(kind, 4, 7)[0])
        odd = [o.upper() if isinstance(o, str) else o*1e3 for o in new]
        assert rel_err(learn.get_preds(dl=learn.dls.test_dl(new+odd))[0][:4], learn.get_preds(dl=learn.dls.test_dl(new))[0]) < 1e-5

# 54: export, fresh process, same answers

_exported = [(a, x, y, c) for a in archs for x in inputs for y, c in (('strings', False), ('number', True))] + [(a, 'ragged', y, False) for a in archs for y in targets if y not in ('strings', 'number')]

def _answers(learn, new, lengths):
    none, curve = learn.dls.kind == 'none', getattr(learn.pretrain_recorder, 'values', None)
    return (None if none else learn.get_preds(dl=learn.dls.test_dl(new, lengths=lengths))[0], learn.embed(new, lengths), None if none else learn.predict(items(new, lengths)[0])[0],
            curve and [list(r) for r in curve], len(learn.pretrain_history))

@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    "Answers of every kind of learner here, and the answers of its export in a fresh process."
    folder, asked, want = tmp_path_factory.mktemp('exported'), {}, {}
    for i, (arch, x, y, causal) in enumerate(_exported):
        rows, more = make_x(x)
        extra = dict(tokenizer=lambda s: s.split(' ')) if x == 'words' else {}              # a local function
        if x == 'words': rows = [' '.join(o) for o in rows]
        learn = tiny(seq_dls(rows, make_y(y), bs=8, **more, **extra), arch, causal=causal, n_layers=1)
        with learn.no_bar():
            learn.self_pretrain(1)
            if y != 'none': learn.fit(1)
        new, more = make_x(x, 5, seed=11)
        if x == 'words': new = [' '.join(o) for o in new]
        name = '-'.join((arch, x, y, str(causal)))
        asked[name] = new, more.get('lengths')
        try:
            learn.export(folder/f'{name}.pkl')
            want[name] = _answers(learn, new, more.get('lengths'))
        except Exception as e: want[name] = f'{type(e).__name__}: {e}'
    (folder/'asked').write_bytes(pickle.dumps(asked))
    run_python('''
import inspect, pickle, sys, torch
from pathlib import Path
torch.set_num_threads(1)
from lrpt_nb.learner import load_learner
folder, got = Path(sys.argv[1]), {}
def items(x, lengths): return [x[i] if lengths is None else x[i][:int(lengths[i])] for i in range(len(x))]
'''+inspect.getsource(_answers)+'''
for name, (new, lengths) in pickle.loads((folder/'asked').read_bytes()).items():
    try: got[name] = _answers(load_learner(folder/f'{name}.pkl'), new, lengths)
    except Exception as e: got[name] = f'{type(e).__name__}: {e}'
(folder/'got').write_bytes(pickle.dumps(got))''', folder, cwd=folder)
    return want, pickle.loads((folder/'got').read_bytes())

@pytest.mark.parametrize('arch,x,y,causal', _exported)
def test_an_export_answers_the_same_in_a_fresh_process(exported, arch, x, y, causal):
    name = '-'.join((arch, x, y, str(causal)))
    want, got = exported[0][name], exported[1][name]
    assert not isinstance(want, str), want
    assert not isinstance(got, str), got
    (preds, vectors, label, curve, n), (preds_, vectors_, label_, curve_, n_) = want, got
    assert preds is None or rel_err(preds_, preds) < 1e-6
    assert rel_err(vectors_, vectors) < 1e-6 and n_ == n == 1
    assert label_ == (pytest.approx(label, rel=1e-5) if _kinds[y][0] == 'regression' else label)
    assert curve_ == curve, 'the pretraining curve did not survive the export'

@each_arch
def test_an_export_holds_no_training_rows(arch, tmp_path):
    x = np.full((20, 12, 1), 1234.5678, np.float32)
    x[::2] *= -1
    learn = tiny(seq_dls(x, np.full(20, 8765.4321)+np.arange(20), bs=8, normalize=False).with_labels(0.5), arch)
    with learn.no_bar(): learn.self_pretrain(1); learn.fit(1); learn.get_preds(); learn.embed(); learn.show_results(); learn.predict(x[0]*2)
    learn.export(tmp_path/'m.pkl')
    data = (tmp_path/'m.pkl').read_bytes()
    assert np.float32(1234.5678).tobytes() not in data and np.float32(8765.4321+3).tobytes() not in data
    assert len(learn.dls.train.dataset) == 8

def test_an_export_that_fails_leaves_the_learner_whole(tmp_path):
    learn = tiny(toy_dls())
    with learn.no_bar(): learn.fit(1)
    n, opt = len(learn.dls.train.dataset), learn.opt
    (tmp_path/'file').write_text('x')
    with pytest.raises(Exception): learn.export(tmp_path/'file'/'m.pkl')
    assert len(learn.dls.train.dataset) == n and learn.opt is not None, 'a failed export emptied the learner'
    learn.export(tmp_path/'good.pkl')
    size = (tmp_path/'good.pkl').stat().st_size
    learn.bad = (o for o in ())                               # cannot be pickled
    with pytest.raises(Exception): learn.export(tmp_path/'good.pkl')
    assert len(learn.dls.train.dataset) == n and (tmp_path/'good.pkl').stat().st_size == size and len(list(tmp_path.iterdir())) == 2, 'a failed export left half a file'
    with pytest.raises(FileNotFoundError, match='nowhere'): load_learner(tmp_path/'nowhere.pkl')

# 65: embeddings

@each_arch
@each_input
@each_way
@pytest.mark.parametrize('pool', pools.names())
def test_embeddings_do_not_depend_on_batch_or_padding(arch, x, causal, pool):
    (rows, more), kind = make_x(x, 7), x
    learn = tiny(toy_dls(kind, 'none'), arch, causal=causal, pool=pool, dropout=0.2)
    rows = items(rows, more.get('lengths'))
    want = learn.embed(rows)
    assert want.shape == (7, 16) and want.dtype == torch.float32 and want.device.type == 'cpu' and not want.requires_grad
    for i, row in enumerate(rows): assert rel_err(learn.embed([row])[0], want[i]) < 1e-5
    order = [3, 0, 6, 5, 1, 2, 4]
    assert rel_err(learn.embed([rows[i] for i in order]), want[order]) < 1e-5             # the caller's order
    long = rows+[rows[0]+rows[0] if isinstance(rows[0], (str, list)) else np.concatenate([rows[0]]*5)]
    assert rel_err(learn.embed(long)[:7], want) < 1e-5                                    # next to a much longer row
    assert learn.embed().shape == (len(learn.dls.valid.dataset), 16)
