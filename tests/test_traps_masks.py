"TRAPS 13, 15, 16, 17, 19, 31, 37: padding, masks, missing values and the future, for every registered architecture."
import pytest
from toys import *
from lrpt_nb.attention import attend, attend_direct
from lrpt_nb.core import rel_err
from lrpt_nb.learner import denoise_learner
from lrpt_nb.models import DenoiseHead, PoolHead, SeqModel, pools
from lrpt_nb.objectives import Causal, Masked, draw_mask, get_objective, objectives, real_positions

# every architecture with every kind of positions it can carry
bodies = [(a, p) for a in archs for p in positions.names() if positions[p].where == 'embedding' or 'pos' in arch_info(a).settings()]
each_body = pytest.mark.parametrize('arch,pos', bodies)
each_way = pytest.mark.parametrize('causal', ways.values(), ids=ways)
each_junk = pytest.mark.parametrize('junk', (0., 1e3, float('nan')), ids=('zeros', 'thousands', 'nan'))
L, LENGTHS = 24, (24, 1, 2, 7, 17)

def body(arch, pos='none', causal=False, tokens=False, n_layers=4):
    torch.manual_seed(0)
    kind = dict(vocab_size=9) if tokens else dict(d_in=2)
    b = create_body(arch, **kind, d_model=16, n_layers=n_layers, causal=causal, pos=pos, max_len=64 if pos == 'learned' else None).eval()
    if not tokens: torch.nn.init.normal_(b.embed.missing)     # zero at first, which would hide a missing value that is read
    return b

def padded(x, lengths, junk):
    "`x` with `junk` after each row's end."
    tail = ~real_positions(x, lengths)
    return x.masked_fill(tail if x.dim() == 2 else tail[..., None], int(junk) if x.dim() == 2 else junk)

def rows(tokens=False, length=L):
    torch.manual_seed(1)
    return torch.randint(0, 9, (len(LENGTHS), length)) if tokens else torch.randn(len(LENGTHS), length, 2)

# 13: pads leak

@each_body
@each_way
@each_junk
def test_a_row_in_a_padded_batch_equals_the_row_alone(arch, pos, causal, junk):
    b, lengths = body(arch, pos, causal), torch.tensor(LENGTHS)
    x = padded(rows(), lengths, junk)
    with torch.no_grad():
        out = b(x, lengths)
        for i, n in enumerate(LENGTHS):
            assert rel_err(out[i, :n], b(x[i:i+1, :n])[0]) < 1e-5, f'row {i} of length {n}'
            assert rel_err(out[i, :n], b(x[i:i+1, :n], lengths[i:i+1])[0]) < 1e-5

@each_body
@each_way
@pytest.mark.parametrize('pad_id', (0, 8))
def test_tokens_in_a_padded_batch_equal_the_row_alone(arch, pos, causal, pad_id):
    b, lengths = body(arch, pos, causal, tokens=True), torch.tensor(LENGTHS)
    x = padded(rows(tokens=True), lengths, pad_id)
    with torch.no_grad():
        out = b(x, lengths)
        for i, n in enumerate(LENGTHS): assert rel_err(out[i, :n], b(x[i:i+1, :n])[0]) < 1e-5

@each_body
@each_way
def test_padding_has_no_gradient(arch, pos, causal):
    b, lengths = body(arch, pos, causal), torch.tensor(LENGTHS)
    x = rows().requires_grad_()
    real = real_positions(x, lengths)
    b(x, lengths)[real].square().sum().backward()
    assert x.grad[~real].abs().max() == 0
    assert x.grad[real].abs().amax(-1).min() > 0              # the other way round: every real position is read

# 15: pooling and padding

@pytest.mark.parametrize('arch', archs)
@each_way
@pytest.mark.parametrize('pool', pools.names())
@pytest.mark.parametrize('tokens', (False, True), ids=('values', 'tokens'))
def test_logits_do_not_depend_on_padding(arch, causal, pool, tokens):
    b, lengths = body(arch, causal=causal, tokens=tokens, n_layers=2), torch.tensor(LENGTHS)
    model = SeqModel(b, PoolHead(16, 3, pool)).eval()
    x = rows(tokens)
    if tokens: x[:, 0] = 0; x[0, -1] = 0                      # real tokens that look like padding
    for junk in (0, 8):
        once, twice = padded(x, lengths, junk), padded(torch.cat([x, x], 1), lengths, junk)
        with torch.no_grad():
            short, long = model(once, lengths), model(twice, lengths)
            alone = torch.cat([model(once[i:i+1, :n]) for i, n in enumerate(LENGTHS)])
        assert rel_err(short, alone) < 1e-5 and rel_err(long, alone) < 1e-5

@pytest.mark.parametrize('pool', pools.names())
def test_pools_against_a_loop(pool):
    h, lengths = torch.randn(5, L, 4), torch.tensor(LENGTHS)
    want = dict(mean=lambda o: o.mean(0), max=lambda o: o.amax(0), last=lambda o: o[-1], first=lambda o: o[0]).get(pool)
    if want is None: pytest.skip(f'no loop written for pool {pool!r}')
    assert rel_err(pools[pool](h, lengths), torch.stack([want(h[i, :n]) for i, n in enumerate(LENGTHS)])) < 1e-6
    assert rel_err(pools[pool](h), torch.stack([want(o) for o in h])) < 1e-6

# 16: what is masked and what is scored

masked_ones = [Masked(0.15), Masked(0.5), Masked(0.3, span=3), Masked(0.5, span=10)]
every_objective = masked_ones + [get_objective(n, causal=True) for n in objectives.names()]
each_masked = pytest.mark.parametrize('objective', masked_ones, ids=repr)
each_objective = pytest.mark.parametrize('objective', every_objective, ids=repr)

@each_masked
def test_the_share_of_real_positions_hidden_is_the_ratio(objective):
    lengths, gen = torch.tensor([2, 100]), torch.Generator().manual_seed(0)
    x, hidden = torch.randn(2, 100, 1), torch.zeros(2, 100)
    for _ in range(1000): hidden += objective(x, lengths, gen)[0].mask
    real = real_positions(x, lengths)
    assert hidden[~real].sum() == 0
    share = hidden[real].sum().item()/(1000*102)
    assert abs(share-objective.ratio) < 0.01
    assert abs(hidden[0, :2].mean()/1000-objective.ratio) < 0.05         # the short row is hidden as often as the long one
    assert (hidden[1]/1000-objective.ratio).abs().max() < 0.08           # and its ends as often as its middle

@each_objective
@pytest.mark.parametrize('tokens', (False, True), ids=('values', 'tokens'))
def test_only_real_positions_are_scored(objective, tokens):
    lengths = torch.tensor(LENGTHS)
    x = rows(tokens)
    for seed in range(20):
        seen, target, weight = objective(padded(x, lengths, 0), lengths, torch.Generator().manual_seed(seed))
        weight = weight if weight.dim() == 2 else weight.amax(-1)
        assert weight[~real_positions(x, lengths)].sum() == 0
        if seen.mask is not None: assert torch.equal(weight > 0, seen.mask)

@pytest.mark.parametrize('arch', archs)
@each_objective
@each_junk
def test_pad_content_does_not_change_the_loss(arch, objective, junk):
    lengths = torch.tensor(LENGTHS)
    model = SeqModel(body(arch, causal=objective.needs_causal, n_layers=2), DenoiseHead(16, 2))
    def loss(junk):
        seen, target, weight = objective(padded(rows(), lengths, junk), lengths, torch.Generator().manual_seed(0))
        value = objective.loss(model(seen.x, lengths, seen.mask), target, weight)
        return value, torch.autograd.grad(value, model.head.out.weight)[0]
    (a, ga), (b, gb) = loss(5.), loss(junk)
    assert torch.isfinite(b) and rel_err(b, a) < 1e-6 and rel_err(gb, ga) < 1e-5

def test_hidden_content_cannot_be_read():
    for arch in archs:
        model, mask = body(arch), torch.rand(5, L) < 0.5
        a, b = rows(), rows().masked_fill(mask[..., None], 77.)
        assert torch.equal(model(a, None, mask), model(b, None, mask)), arch

# 17: batches that hide nothing

@pytest.mark.parametrize('ratio', (0., 0.01, 1.))
@pytest.mark.parametrize('lengths', ((1, 1), (1, 2), (2, 2)), ids=str)
@pytest.mark.parametrize('tokens', (False, True), ids=('values', 'tokens'))
@pytest.mark.parametrize('arch', archs)
def test_tiny_batches_keep_a_finite_loss(arch, tokens, lengths, ratio):
    x, lengths = rows(tokens)[:2, :max(lengths)], torch.tensor(lengths)
    model = SeqModel(body(arch, tokens=tokens, n_layers=1), DenoiseHead(16, 9 if tokens else 2))
    objective = Masked(ratio)
    for seed in range(5):
        seen, target, weight = objective(x, lengths, torch.Generator().manual_seed(seed))
        loss = objective.loss(model(seen.x, lengths, seen.mask), target, weight)
        model.zero_grad(); loss.backward()
        assert torch.isfinite(loss) and all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
        hidden = int(seen.mask.sum())
        assert hidden == (0 if ratio == 0 else int(lengths.sum()) if ratio == 1 else hidden) and (ratio == 0) == (hidden == 0)
        if ratio == 0: assert loss.item() == 0

@pytest.mark.parametrize('objective', (Masked(0.01), Masked(0.01, span=3), Masked(1e-6)), ids=repr)
def test_a_position_is_hidden_whenever_one_can_be(objective):
    for seed in range(30):
        real = torch.rand(3, 7, generator=torch.Generator().manual_seed(seed)) < 0.1
        mask = draw_mask(real, objective.ratio, objective.span, torch.Generator().manual_seed(seed))
        assert mask.any() == real.any() and not (mask & ~real).any()

@pytest.mark.parametrize('arch', archs)
@pytest.mark.parametrize('x,ratio', (('array3', 0.), ('strings', 0.)))
def test_metrics_of_nothing_say_none(arch, x, ratio):
    dls = toy_dls(x)
    learn = denoise_learner(dls, tiny(dls, arch).model.body, Masked(ratio))
    with learn.no_bar(), pytest.warns(UserWarning, match='never a number'): learn.fit(1)
    assert learn.recorder.values[-1][0] == 0                  # a loss over nothing is zero ...
    assert all(o is None for o in learn.validate()[1:])       # ... and there is no accuracy of nothing
    assert all(torch.isfinite(p).all() for p in learn.model.parameters())

@pytest.mark.parametrize('arch', archs)
def test_a_causal_batch_of_single_steps_trains(arch):
    dls = seq_dls([np.ones((1, 2))*i for i in range(6)], None, bs=3, layout='NLC')
    learn = tiny(dls, arch, causal=True)
    with learn.no_bar(): learn.self_pretrain(1)
    assert all(torch.isfinite(p).all() for p in learn.model.parameters())

# 19: one boolean convention

@pytest.mark.parametrize('fn', (attend, attend_direct))
@each_way
def test_a_masked_key_has_exactly_no_influence(fn, causal):
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, 9, 8, requires_grad=True) for _ in range(3))
    keep = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]
    out = fn(q, k, v, keep, causal)
    gone = ~keep[:, None, :, None].expand(k.shape)
    other = fn(q, k.detach().masked_fill(gone, 1e3), v.detach().masked_fill(gone, -1e3), keep, causal)
    assert torch.equal(out, other)
    gk, gv = torch.autograd.grad(out.square().sum(), (k, v))
    assert gk[gone].abs().max() == 0 and gv[gone].abs().max() == 0
    assert gv[~gone].abs().max() > 0                          # True means: may be attended to
    assert rel_err(attend(q, k, v, keep, causal), attend_direct(q, k, v, keep, causal)) < 1e-5

@pytest.mark.parametrize('dtype', (torch.float32, torch.int64, torch.uint8))
def test_a_mask_of_another_type_is_refused(dtype):
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(TypeError, match='boolean'): attend(q, q, q, torch.ones(1, 4, dtype=dtype))

# 31: the future

@each_body
@pytest.mark.parametrize('tokens', (False, True), ids=('values', 'tokens'))
def test_a_causal_body_does_not_see_the_future(arch, pos, tokens):
    b, t = body(arch, pos, causal=True, tokens=tokens), 40
    torch.manual_seed(2)
    x = torch.randint(0, 9, (2, 60)) if tokens else torch.randn(2, 60, 2)
    y = x.clone()
    y[:, t:] = (y[:, t:]+1) % 9 if tokens else torch.randn(2, 60-t, 2)
    mask = torch.zeros(2, 60, dtype=torch.bool)
    mask[:, 45] = True
    with torch.no_grad():
        holes = y if tokens else y.masked_fill((y > 1) & (torch.arange(60) >= t)[:, None], float('nan'))
        for other in (b(y), b(y, torch.tensor([60, 50])), b(holes), b(x, None, mask)): assert rel_err(other[:, :t], b(x)[:, :t]) < 2e-6
        assert rel_err(b(y)[:, t:], b(x)[:, t:]) > 1e-2       # while the change itself is seen
        for pool in ('last', 'mean', 'max', 'first'):
            lengths = torch.tensor([t, t-3])
            assert rel_err(pools[pool](b(y, lengths), lengths), pools[pool](b(x, lengths), lengths)) < 2e-6

@each_body
def test_a_two_way_body_sees_what_follows(arch, pos):
    b, x = body(arch, pos, n_layers=2), torch.randn(2, 60, 2)
    y = x.clone()
    y[:, 40:] = torch.randn(2, 20, 2)
    with torch.no_grad(): assert (b(x)[:, :40]-b(y)[:, :40]).abs().amax((0, 2)).min() > 1e-6

@pytest.mark.parametrize('arch', archs)
def test_predicting_the_future_needs_a_causal_body(arch):
    dls = toy_dls()
    with pytest.raises(ValueError, match='causal=True'): tiny(dls, arch, objective='causal')
    with pytest.raises(ValueError, match='causal=True'): tiny(dls, arch).self_pretrain(1, objective=Causal())

# 37: missing values

def holes(kind):
    r = np.random.default_rng(3)
    x = r.normal(size=(20, 12, 3)).astype('float32')
    if kind == 'scattered': x[r.random(x.shape) < 0.2] = np.nan
    if kind == 'channel': x[..., 1] = np.nan
    if kind == 'row': x[::4] = np.nan
    if kind == 'step': x[:, 3] = np.nan
    if kind == 'all': x[:] = np.nan
    return x
each_hole = pytest.mark.parametrize('kind', ('scattered', 'channel', 'row', 'step', 'all'))

@each_hole
@pytest.mark.parametrize('arch', archs)
@each_way
@pytest.mark.filterwarnings('ignore:.*never a number')
def test_missing_values_train(arch, kind, causal):
    learn, bad = tiny(seq_dls(holes(kind), np.arange(20) % 2, bs=8, valid=list(range(6))), arch, causal=causal), []
    def look(cb):
        if cb.training: bad.extend(n for n, p in cb.model.named_parameters() if p.grad is not None and not torch.isfinite(p.grad).all())
    with learn.no_bar():
        learn.self_pretrain(1, cbs=OnEvent(before_step=look))
        learn.fit(1, cbs=OnEvent(before_step=look))
    assert not bad
    assert np.isfinite(learn.pretrain_recorder.losses).all() and np.isfinite(learn.recorder.losses).all()
    assert torch.isfinite(learn.get_preds()[0]).all()
    if kind not in ('all',): assert np.isfinite(learn.pretrain_history[-1]['valid_loss'])

@each_hole
@each_objective
def test_missing_values_are_never_scored(kind, objective):
    x = torch.tensor(holes(kind))
    gone = torch.isnan(x)
    for seed in range(5):
        seen, target, weight = objective(x, None, torch.Generator().manual_seed(seed))
        missing = gone if seen.mask is not None else torch.cat([gone[:, 1:], torch.ones_like(gone[:, :1])], 1)   # causal: the target is the next step
        assert weight[missing].sum() == 0 and torch.isfinite(target).all()
        pred = torch.randn(target.shape, requires_grad=True)
        loss = objective.loss(pred, target, weight)
        assert torch.equal(loss, objective.loss(pred, target.masked_fill(missing, 1e6), weight))
        grad, = torch.autograd.grad(loss, pred)
        assert torch.isfinite(grad).all() and (grad[missing] == 0).all()
        if kind != 'all' and (weight > 0).any(): assert loss > 0

def test_statistics_skip_what_is_missing_or_padding():
    x = holes('scattered')
    p = seq_dls(x, None, valid=[0]).prep
    assert np.allclose(p.mean, np.nanmean(x[1:], (0, 1)), atol=1e-6) and np.allclose(p.std, np.nanstd(x[1:], (0, 1)), atol=1e-6)
    lengths = np.arange(20) % 12+1
    junk = np.where((np.arange(12) < lengths[:, None])[..., None], x, 1e9)
    rows_ = [o[:n] for o, n in zip(x, lengths)]
    a, b = seq_dls(junk, None, valid=[0], lengths=lengths), seq_dls(rows_, None, valid=[0])
    real = np.concatenate(rows_[1:])
    for o in (a, b): assert np.allclose(o.prep.mean, np.nanmean(real, 0), atol=1e-6) and np.allclose(o.prep.std, np.nanstd(real, 0), atol=1e-6)
    assert np.array_equal(a.prep.mean, b.prep.mean) and torch.equal(a.train.dataset.x.nan_to_num(7), b.train.dataset.x.nan_to_num(7))
