"What fastai users do with a `Learner`, on ours: also TRAPS 2 (mixed precision), 10 (weight decay) and reproducibility."
import copy, pickle, re, warnings
import matplotlib.pyplot as plt
import pytest
from toys import *
from fastai.callback.tracker import EarlyStoppingCallback, ReduceLROnPlateau, SaveModelCallback
from fastai.callback.training import GradientAccumulation, GradientClip
from fastai.interpret import ClassificationInterpretation
from fastai.losses import CrossEntropyLossFlat, LabelSmoothingCrossEntropy, MSELossFlat
from fastai.metrics import F1Score, accuracy
from lrpt_nb.callbacks import KeepBest
from lrpt_nb.core import rel_err
from lrpt_nb.learner import denoise_learner, load_learner
from lrpt_nb.models import archs as registry, register_arch
from lrpt_nb.tasks import load_task

each_arch = pytest.mark.parametrize('arch', archs)
each_input = pytest.mark.parametrize('x', inputs)
each_few = pytest.mark.parametrize('x', few_inputs)
each_label = pytest.mark.parametrize('y', [o for o in targets if o != 'none'])
each_way = pytest.mark.parametrize('causal', ways.values(), ids=ways)

@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    "Learners write below the current folder."
    monkeypatch.chdir(tmp_path)
    yield
    plt.close('all')

def fitted(x='array3', y='strings', arch='transformer', **settings):
    learn = tiny(toy_dls(x, y), arch, **settings)
    with learn.no_bar(): learn.fit(1)
    return learn

# training

@each_arch
@each_few
@pytest.mark.parametrize('y', few_targets)
def test_the_usual_methods(arch, x, y):
    learn = tiny(toy_dls(x, y), arch)
    with learn.no_bar():
        before = weights(learn.model)
        found = learn.lr_find(num_it=4, show_plot=False)
        assert found.valley > 0 and same(before, weights(learn.model))
        learn.fit(1); learn.fit_one_cycle(1, 1e-3); learn.fit_flat_cos(1); learn.fine_tune(1); learn.freeze(); learn.fit(1); learn.unfreeze(); learn.fit_one_cycle(1, slice(1e-4, 1e-3))
        assert np.isfinite(learn.recorder.losses).all() and len(learn.recorder.values[-1]) == 2+len(learn.metrics)
        assert learn.validate() == learn.validate() and learn.validate(ds_idx=0)[0] > 0
        learn.show_results(); learn.show_results(ds_idx=0, max_n=2); learn.dls.show_batch(max_n=3); learn.dls.valid.show_batch(max_n=1)
        learn.predict(items(make_x(x)[0])[0])

def test_summary_needs_no_further_import():
    run_python('''
from toys import *
for arch in archs:
    for x in few_inputs:
        assert 'SeqModel' in (text := str(tiny(toy_dls(x), arch).summary())) and 'Total params' in text''', cwd='.')

@each_arch
@each_few
@each_label
def test_save_and_load(arch, x, y):
    learn = fitted(x, y, arch)
    want, opt = learn.get_preds()[0], copy.deepcopy(learn.opt.state_dict())
    learn.save('here')
    with learn.no_bar(): learn.fit(2, 1e-2)
    assert not torch.equal(learn.get_preds()[0], want)
    learn.load('here')
    assert torch.equal(learn.get_preds()[0], want)
    other = tiny(toy_dls(x, y), arch, seed=5).load('here')
    assert torch.equal(other.get_preds()[0], want)
    for a, b in zip(opt['state'], other.opt.state_dict()['state']): assert all(torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a)
    with other.no_bar(): other.fit(1)

@each_arch
@pytest.mark.parametrize('causal', ways.values(), ids=ways)
def test_pickle_and_deepcopy(arch, causal):
    learn = tiny(toy_dls('ragged'), arch, causal=causal)
    with learn.no_bar(): learn.self_pretrain(2); learn.fit(1)
    for other in (copy.deepcopy(learn), pickle.loads(pickle.dumps(learn))):
        assert torch.equal(other.get_preds()[0], learn.get_preds()[0])
        assert other.pretrain_recorder.values == learn.pretrain_recorder.values, 'the curve was lost'
        before = weights(learn.model)
        with other.no_bar(): other.self_pretrain(1); other.fit(1)
        assert same(before, weights(learn.model)) and len(other.pretrain_history) == 2

@each_few
def test_a_denoising_learner_pickles(x):
    dls = toy_dls(x)
    learn = denoise_learner(dls, tiny(dls).model.body)
    with learn.no_bar(): learn.fit(2)
    card, loss = learn.card(), learn.validate()
    other = pickle.loads(pickle.dumps(learn))
    assert other.validate() == loss and other.card() == card
    learn.show_results(); learn.get_preds(); learn.export('d.pkl')

# predictions

@each_arch
@each_input
def test_predictions_keep_the_callers_order(arch, x):
    learn = fitted(x, 'ints', arch)
    new, more = make_x(x, 20, seed=4)
    y = np.random.default_rng(0).integers(0, 3, 20)
    dl = learn.dls.test_dl(new, y, bs=6, **more)
    preds, want = learn.get_preds(dl=dl)
    assert want.tolist() == y.tolist() and dl.n_inp in (1, 2)
    back = items(new, more.get('lengths'))[::-1]
    assert rel_err(learn.get_preds(dl=learn.dls.test_dl(back, bs=7))[0].flip(0), preds) < 1e-5
    assert rel_err(learn.get_preds(dl=learn.dls.test_dl(new, **more).new(shuffle=True))[0], preds) < 1e-5
    loss, acc = learn.validate(dl=dl)
    assert acc == pytest.approx((preds.argmax(1) == want).float().mean().item()) and loss == pytest.approx(-preds[range(20), y].log().mean().item(), rel=1e-4)
    assert torch.equal(learn.get_preds(ds_idx=0)[1], learn.dls.train.dataset.y)

@each_arch
@pytest.mark.parametrize('x,y', [(x, y) for x in inputs for y in few_targets] + [('ragged', y) for y in targets if y not in (*few_targets, 'none')])
def test_predict(arch, x, y):
    learn = fitted(x, y, arch)
    rows, more = make_x(x, 4, seed=8)
    rows = items(rows, more.get('lengths'))
    preds, _, decoded = learn.get_preds(dl=learn.dls.test_dl(rows), with_decoded=True)
    for i, row in enumerate(rows):
        label, coded, numbers = learn.predict(row)
        assert numbers.shape == preds[i].shape and rel_err(numbers, preds[i]) < 1e-4 and coded.shape == decoded[i].shape
        assert type(label) is type(learn.dls.target.decode(learn.dls.target.encode(make_y(y))[0]))
    given, *rest = learn.predict(rows[0], with_input=True)
    assert len(rest) == 3
    if x in token_inputs: assert list(given) == list(rows[0])
    else: assert np.allclose(np.squeeze(given), np.squeeze(np.asarray(rows[0], np.float64)), atol=1e-5, equal_nan=True)

@pytest.mark.parametrize('bad', (3, None, np.zeros((1, 12, 3)), np.zeros((12, 4)), np.zeros((0, 3)), 'text'))
def test_what_cannot_be_predicted_says_why(bad):
    with pytest.raises((ValueError, TypeError)) as e: fitted().predict(bad)
    assert re.search(r'channels|sequence|strings|empty|single', str(e.value)), e.value

@each_arch
@each_label
def test_predictions_of_nothing_are_refused(arch, y):
    learn = fitted('ragged', y, arch)
    for empty in ([], np.zeros((0, 12, 3))):
        with pytest.raises(ValueError, match='empty'): learn.dls.test_dl(empty)

# interpretation

@each_arch
@each_few
@pytest.mark.parametrize('y', ('ints', 'strings', 'bools'))
def test_classification_interpretation(arch, x, y):
    learn = fitted(x, y, arch)
    interp = ClassificationInterpretation.from_learner(learn)
    preds, want = learn.get_preds()
    c = learn.dls.c
    table = np.zeros((c, c), int)
    for t, p in zip(want, preds.argmax(1)): table[t, p] += 1
    assert interp.confusion_matrix().shape == (c, c) and (interp.confusion_matrix() == table).all()
    assert {o for row in interp.most_confused() for o in row[:2]} <= set(learn.dls.vocab)
    interp.plot_confusion_matrix()
    interp.print_classification_report()
    losses, rows = interp.top_losses(3)
    assert torch.equal(losses, interp.losses[rows]) and list(learn.dls.vocab) == list(learn.dls.target.vocab)

# mixed precision (TRAPS 2)

@each_arch
@each_few
@each_way
@pytest.mark.parametrize('how', ('to_bf16', 'to_fp16'))
def test_mixed_precision(arch, x, causal, how):
    learn = tiny(toy_dls(x), arch, causal=causal)
    assert not any(p.is_complex() for p in [*learn.model.parameters(), *learn.model.buffers()]) and all(p.dtype == torch.float32 for p in learn.model.parameters())
    seen = set()
    h = learn.model.body.blocks[0].mixer.out.register_forward_hook(lambda m, i, o: seen.add(o.dtype)) if hasattr(learn.model.body.blocks[0].mixer, 'out') else None
    with learn.no_bar():
        assert getattr(learn, how)() is learn
        learn.self_pretrain(1)
        if h: assert seen == {torch.bfloat16 if how == 'to_bf16' else torch.float16}, 'pretraining ran in another precision'
        before = weights(learn.model)
        learn.fit_one_cycle(1, 1e-3)
        assert np.isfinite(learn.recorder.losses).all() and np.isfinite(learn.pretrain_recorder.losses).all() and not same(before, weights(learn.model))
        loss = learn.validate()[0]
        label, _, probs = learn.predict(items(make_x(x)[0])[0])
        assert np.isfinite(loss) and probs.dtype == torch.float32 and learn.embed().dtype == torch.float32
        learn.show_results(); learn.lr_find(num_it=5, show_plot=False)
        learn.export('m.pkl')
        assert load_learner('m.pkl').predict(items(make_x(x)[0])[0])[0] == label
        learn.to_fp32()
        seen.clear(); learn.fit(1)
        if h: assert seen == {torch.float32}

def test_precision_can_be_changed():
    learn = tiny(toy_dls())
    with learn.no_bar():
        learn.to_bf16().to_bf16(); learn.fit(1)
        learn.to_fp16(); learn.fit(1)
        learn.to_bf16(); learn.fit(1)
        learn.to_fp32(); learn.fit(1); learn.self_pretrain(1)
    assert not any('Precision' in type(c).__name__ for c in learn.cbs)

# weight decay (TRAPS 10)

_ssm_names = re.compile(r'(^|_)(dt|decay|freq|nu|theta|lambda|a|A|p|P)(_|$)')
@each_arch
@each_way
@pytest.mark.parametrize('stage', ('fit', 'frozen then unfrozen', 'saved and loaded', 'exported', 'self_pretrain'))
def test_state_space_parameters_do_not_decay(arch, causal, stage):
    learn = tiny(toy_dls(), arch, causal=causal)
    named = [(n, p) for n, p in learn.model.named_parameters() if n.startswith('body.blocks')]
    dynamic = {n for n, _ in named if _ssm_names.search(n.rsplit('.', 1)[-1])}
    if arch_info(arch).family == 'ssm': assert len(dynamic) >= 2*len(learn.model.body.blocks), 'no parameter of the state was recognised by name'
    still = OnEvent(before_step=lambda cb: [p.grad.zero_() for p in cb.model.parameters() if p.grad is not None])     # only decay can move anything
    with learn.no_bar():
        if stage == 'frozen then unfrozen': learn.freeze(); learn.fit(1); learn.unfreeze()
        if stage == 'saved and loaded': learn.fit(1); learn.save('a'); learn.load('a')
        if stage == 'exported': learn.fit(1); learn.export('m.pkl')
        before = {n: p.detach().clone() for n, p in named}
        if stage == 'self_pretrain':
            learn.wd = 0.1
            learn.self_pretrain(2, lr=1e-2, cbs=still)
        else:
            if learn.opt: learn.opt.clear_state()             # no momentum either
            learn.fit_one_cycle(2, 1e-2, wd=0.1, cbs=still)
    after = dict(named)
    for n in dynamic: assert torch.equal(before[n], after[n]), f'{n} decayed'
    shrunk = [n for n in before if n.endswith('out.weight')]
    assert shrunk and all(after[n].norm() < before[n].norm() for n in shrunk)

# callbacks

@each_arch
@pytest.mark.parametrize('make', (lambda: EarlyStoppingCallback(patience=1, min_delta=9), lambda: SaveModelCallback(fname='best'), lambda: SaveModelCallback(every_epoch=True), ReduceLROnPlateau, lambda: GradientAccumulation(10), GradientClip,
    KeepBest, lambda: KeepBest('accuracy'), lambda: KeepBest('train_loss')), ids=('early', 'save', 'save every', 'plateau', 'accumulate', 'clip', 'keep', 'keep accuracy', 'keep train'))
def test_callbacks(arch, make):
    learn = tiny(toy_dls('ragged'), arch, cbs=make())
    with learn.no_bar():
        learn.fit(3)
        learn.self_pretrain(1); learn.fit(1)
        learn.validate(); learn.get_preds(); learn.predict(make_x('ragged')[0][0])
        learn.export('m.pkl')
        other = tiny(toy_dls('ragged'), arch)
        kind = type(learn.cbs[-1])
        if not (isinstance(make(), (KeepBest,)) and make().monitor == 'accuracy'): other.self_pretrain(3, cbs=make())
        other.fit(2, cbs=make())

def test_early_stopping_stops_and_save_model_restores():
    learn = tiny(toy_dls())
    with learn.no_bar():
        learn.fit(5, cbs=EarlyStoppingCallback(patience=1, min_delta=1e9))
        assert len(learn.recorder.values) == 2
        kept, losses = [], []
        learn.fit(4, 3e-2, cbs=[SaveModelCallback(fname='best'), OnEvent(after_validate=lambda cb: kept.append(weights(cb.model)))])
        losses = [o[1] for o in learn.recorder.values]
    assert same(weights(learn.model), kept[int(np.argmin(losses))])

def test_keep_best_restores_and_leaves_no_copy():
    learn, kept = tiny(toy_dls()), []
    with learn.no_bar(): learn.fit(4, 3e-2, cbs=[k := KeepBest(), OnEvent(after_validate=lambda cb: kept.append(weights(cb.model)))])
    losses = [o[1] for o in learn.recorder.values]
    best = int(np.argmin(losses))
    assert same(weights(learn.model), kept[best]) and k.best == losses[best] and k.best_epoch == best and k.weights is None

@pytest.mark.parametrize('metrics', ([], None))
def test_keep_best_looks_at_training_only(metrics):
    keep = KeepBest()
    learn = tiny(toy_dls(), metrics=metrics, cbs=keep)
    with learn.no_bar(), warnings.catch_warnings():
        warnings.simplefilter('error')
        learn.fit(2)
        best, after = (keep.best, keep.best_epoch), weights(learn.model)
        learn.validate(); learn.get_preds(); learn.predict(make_x('array3')[0][0])
    assert (keep.best, keep.best_epoch) == best and same(after, weights(learn.model))

def test_callbacks_are_added_and_removed():
    class Count(Callback):
        n = 0
        def after_batch(self): self.n += 1
    learn = tiny(toy_dls())
    with learn.no_bar():
        learn.add_cb(c := Count()); learn.fit(1)
        assert c.n and learn.count is c
        learn.remove_cb(c); n = c.n; learn.fit(1)
        assert c.n == n
        learn.fit(1, cbs=c); learn.self_pretrain(1, cbs=c)
        assert c.n > n
    with pytest.raises(ValueError, match='nope'): tiny(toy_dls()).fit(1, cbs=KeepBest('nope'))

def test_self_pretrain_respects_quiet():
    learn = tiny(toy_dls())
    with learn.no_bar(), learn.no_logging():
        import contextlib, io
        with contextlib.redirect_stdout(io.StringIO()) as out: learn.self_pretrain(1); learn.fit(1)
    assert out.getvalue() == ''

# losses and metrics

@pytest.mark.parametrize('y,loss', (('strings', lambda: CrossEntropyLossFlat(weight=torch.tensor([.1, .9]))), ('strings', LabelSmoothingCrossEntropy), ('number', MSELossFlat), ('number1', MSELossFlat),
    ('strings', lambda: torch.nn.CrossEntropyLoss(weight=torch.tensor([.1, .9]))), ('strings', lambda: torch.nn.functional.cross_entropy), ('number', torch.nn.L1Loss), ('multihot', torch.nn.BCEWithLogitsLoss)))
def test_other_losses(y, loss):
    learn = tiny(toy_dls('ragged', y), loss_func=loss())
    with learn.no_bar(): learn.fit(1)
    assert np.isfinite(learn.recorder.losses).all()
    preds = learn.get_preds()[0]
    if y == 'strings': assert torch.allclose(preds.sum(1), torch.ones(len(preds)), atol=1e-5), 'probabilities do not add up to one'
    learn.predict(make_x('ragged')[0][0]); learn.show_results()
    learn.export('m.pkl')
    load_learner('m.pkl').predict(make_x('ragged')[0][0])

def test_class_weights_keep_every_row():
    y = np.array(['common']*49+['rare'])
    x = make_x('array3', 50)[0]
    learn = tiny(seq_dls(x, y, bs=8), loss_func=CrossEntropyLossFlat(weight=torch.tensor([.02, .98])))
    with learn.no_bar(): learn.fit(1)
    new = make_x('array3', 23, 3)[0]
    assert len(learn.get_preds(dl=learn.dls.test_dl(new))[0]) == 23 and sum(len(b[0]) for b in learn.dls.train) == 40

def test_other_metrics():
    learn = tiny(toy_dls(), metrics=[accuracy, F1Score(average='macro')])
    with learn.no_bar(): learn.fit(1)
    assert len(learn.validate()) == 3

# reproducibility

def _run(arch='transformer', between=lambda l: None, dropout=0., causal=False, x='array3'):
    learn = tiny(toy_dls(x), arch, dropout=dropout, causal=causal)
    with learn.no_bar():
        between(learn); learn.self_pretrain(2)
        body = weights(learn.model)
        between(learn); learn.fit_one_cycle(1, 1e-2)
    return body, weights(learn.model), learn.recorder.losses, learn.pretrain_recorder.values

def _noise(learn): torch.rand(5); np.random.rand(5); import random; random.random()

@each_arch
@each_few
@each_way
def test_one_seed_one_result(arch, x, causal):
    a, b = _run(arch, dropout=0.2, causal=causal, x=x), _run(arch, dropout=0.2, causal=causal, x=x)
    assert same(a[0], b[0]) and same(a[1], b[1]) and a[2] == b[2] and a[3] == b[3]

@each_arch
def test_use_of_the_global_stream_does_not_change_the_result(arch):
    a, b = _run(arch), _run(arch, _noise)
    assert same(a[0], b[0]), 'self_pretrain draws its heads from the global stream'
    assert same(a[1], b[1]) and a[2] == b[2]
    assert same(_run(arch, dropout=0.2)[0], _run(arch, _noise, dropout=0.2)[0])            # dropout while pretraining too

@pytest.mark.parametrize('look', (lambda l: l.validate(), lambda l: l.get_preds(ds_idx=0), lambda l: l.predict(make_x('array3')[0][0]), lambda l: l.embed(), lambda l: l.show_results(ds_idx=0), lambda l: l.dls.show_batch(),
    lambda l: l.dls.one_batch(), lambda l: l.export('m.pkl'), lambda l: l.save('m'), lambda l: l.save_body('m'), pickle.dumps),
    ids=('validate', 'get_preds', 'predict', 'embed', 'show_results', 'show_batch', 'one_batch', 'export', 'save', 'save_body', 'pickle'))
def test_looking_does_not_change_the_result(look):
    a, b = _run(dropout=0.2), _run(between=look, dropout=0.2)
    assert same(a[0], b[0]) and same(a[1], b[1])

def test_learners_that_share_data_do_not_disturb_each_other():
    def run(other):
        dls = toy_dls()
        learn = tiny(dls)
        if other:
            second = tiny(dls, archs[0], seed=5)
            with second.no_bar(): second.self_pretrain(1); second.fit(1)
        with learn.no_bar(): learn.self_pretrain(1); learn.fit(1)
        return weights(learn.model)
    assert same(run(False), run(True))

def test_shuffled_results_differ():
    learn = fitted(y='float64', n_layers=1)
    titles = set()
    for _ in range(8):
        learn.show_results(ds_idx=0, max_n=1)
        titles.add(plt.gcf().axes[0].get_title().split(' ')[0])
    assert len(titles) > 1, "`shuffle=True` says it draws different rows each time"

def test_no_seed_is_another_result_each_time():
    a, b = (tiny(toy_dls(), seed=None) for _ in range(2))
    assert not same(weights(a.model), weights(b.model)) and a.seed != b.seed
    assert same(weights(a.model), weights(tiny(toy_dls(), seed=a.seed).model))             # and on record
    for bad in (1.5, 'a', True):
        with pytest.raises(TypeError, match='seed'): tiny(toy_dls(), seed=bad)

# silence

@each_arch
@each_few
@pytest.mark.parametrize('y', few_targets)
def test_a_whole_run_warns_of_nothing(arch, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        warnings.filterwarnings('ignore', message='.*numpy.core.*')                        # torch.load's, in `Learner.load`
        learn = tiny(toy_dls(x, y), arch)
        with learn.no_bar():
            learn.self_pretrain(1); learn.fit_one_cycle(1); learn.validate(); learn.get_preds(); learn.predict(items(make_x(x)[0])[0]); learn.embed(); learn.show_results(); learn.dls.show_batch()
            learn.save('m'); learn.load('m'); learn.export('m.pkl'); learn.save_body('b')
        load_learner('m.pkl').predict(items(make_x(x)[0])[0])
        tiny(toy_dls(x, y), arch, pretrained='b')

def test_integers_that_look_like_values_are_mentioned():
    x = np.random.default_rng(0).integers(-2000, 2000, (20, 12))
    with pytest.warns(UserWarning, match='x_kind'): seq_dls(x, None)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert seq_dls(x, None, x_kind='values').prep.d_in == 1 and seq_dls(x, None, x_kind='tokens').prep.vocab_size > 100
        seq_dls(x % 30, None)

# bad settings

@pytest.mark.parametrize('bad,error,words', ((dict(arch='x'), ValueError, 'arch'), (dict(size='x'), ValueError, 'size'), (dict(objective='x'), ValueError, 'objective'), (dict(d_model=0), ValueError, 'd_model'),
    (dict(d_model=15), ValueError, '15'), (dict(n_layers=0), ValueError, 'n_layers'), (dict(n_heads=3), ValueError, 'n_heads'), (dict(d_stat=3), TypeError, 'd_stat'), (dict(pos='x'), ValueError, 'pos'),
    (dict(pool='x'), ValueError, 'pool'), (dict(objective='causal'), ValueError, 'causal'), (dict(d_in=3), TypeError, 'd_in'), (dict(pretrained='nowhere'), FileNotFoundError, 'nowhere'), (dict(causal='yes'), TypeError, 'causal')))
def test_settings_that_do_not_fit_are_named(bad, error, words):
    with pytest.raises(error, match=words): sp_learner(toy_dls(), **(dict(arch='transformer', n_layers=1, seed=0) | bad))

def test_what_is_no_learner_no_body_no_layer_is_named():
    dls = toy_dls()
    Path('junk.pkl').write_text('junk')
    tiny(dls).save_body('body')
    for bad in ('junk.pkl', 'body.safetensors', '.'):
        with pytest.raises((ValueError, OSError), match=re.escape(bad)): load_learner(bad)
    with pytest.raises(TypeError, match='body'): denoise_learner(dls, torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match='dls'): denoise_learner([1], create_body(d_in=3, d_model=16, n_layers=1))
    with pytest.raises(ValueError, match='3'): denoise_learner(dls, create_body(d_in=2, d_model=16, n_layers=1))
    with pytest.raises(TypeError, match='layer_fn'): register_arch('nothing', None)
    assert 'nothing' not in list_archs()

@pytest.mark.parametrize('x', few_inputs)
def test_learned_positions_are_long_enough_or_say_so(x):
    rows, more = make_x(x)
    longer = [o*3 if isinstance(o, str) else np.concatenate([o]*3) for o in items(rows)][:4]
    learn = tiny(seq_dls(rows, make_y('strings'), valid=(longer, ['no', 'yes']*2), bs=8), pos='learned')                     # validation rows are longer
    with learn.no_bar(): learn.self_pretrain(1, save_to='b'); learn.fit(1)
    much = [o*9 if isinstance(o, str) else np.concatenate([o]*9) for o in items(rows)]
    with pytest.raises(ValueError, match='(?s)length.*max_len'): learn.predict(max(much, key=len))
    with pytest.raises(ValueError, match='max_len'): tiny(seq_dls(much, None), pretrained='b')                               # before any training
    with pytest.raises(ValueError, match='max_len'): tiny(seq_dls(rows, None), pos='learned', max_len=2)

# a new architecture, a registered task

def test_a_new_architecture_is_a_citizen():
    class Echo(torch.nn.Module):
        no_decay = ('log_dt',)
        def __init__(self, d_model, causal=False, gain=1.):
            super().__init__()
            self.out,self.log_dt = torch.nn.Linear(d_model, d_model),torch.nn.Parameter(torch.ones(d_model))
        def forward(self, x, lengths=None): return self.out(x)*self.log_dt
    register_arch('echo', Echo)
    try:
        learn = tiny(toy_dls('ragged'), 'echo', gain=2.)
        with learn.no_bar(): learn.self_pretrain(1, save_to='e'); learn.fit(1)
        assert tiny(toy_dls('ragged'), 'echo', gain=2., pretrained='e').model.body.config['gain'] == 2.
        with pytest.raises(TypeError, match='gain'): tiny(toy_dls(), 'echo', pain=2.)
        with pytest.raises(ValueError, match='gain'): tiny(toy_dls('ragged'), 'echo', gain=3., pretrained='e')
    finally: registry.items.pop('echo')

@each_arch
def test_a_named_task_end_to_end(arch):
    dls = load_task('digits', bs=16, n_train=32, seed=0)
    learn = sp_learner(dls, arch, size='tiny', seed=0)
    with learn.no_bar():
        learn.self_pretrain(1); learn.fit_one_cycle(1, 1e-3)
        assert learn.pretrain_history[0]['data']['task'] == 'digits' and learn.pretrain_history[0]['objective']['ratio'] == dls.task.mask_ratio
        learn.export('m.pkl')
    x = dls.test.dataset.x[:3]*torch.tensor(dls.prep.std)+torch.tensor(dls.prep.mean)
    loaded = load_learner('m.pkl')
    assert rel_err(loaded.get_preds(dl=loaded.dls.test_dl(x))[0], learn.get_preds(ds_idx=2)[0][:3]) < 1e-4
    assert len(learn.get_preds(ds_idx=2)[0]) == len(dls.test.dataset) and loaded.predict(x[0])[0] in range(10)
