"TRAPS 10, 11, 22, 23, 24, 30, 32: optimiser groups, lengths, memory and recurrent use of every registered architecture."
import copy, math
import pytest, torch
from toys import archs, arch_info, create_body, tiny, toy_dls, ways
from lrpt_nb.core import rel_err, set_seed
from lrpt_nb.learner import load_learner, sp_learner
from lrpt_nb.models import checkpoint_blocks
from lrpt_nb.optim import time_parameters
from lrpt_nb.presets import paper_rows

every_arch = pytest.mark.parametrize('arch', archs)
every_way = pytest.mark.parametrize('causal', ways.values(), ids=ways)
recurrent = [o for o in archs if hasattr(create_body(o, d_in=1, d_model=16, n_layers=1, causal=True).blocks[0].mixer, 'extend')]

@pytest.fixture(autouse=True)
def _here(in_tmp): pass

# parameters that shape time: one group, no decay, a lid on the learning rate (TRAPS 10)

@every_arch
def test_every_parameter_is_in_one_group(arch):
    learn = tiny(toy_dls(), arch)
    learn.create_opt()
    grouped = [id(p) for group in learn.opt.param_lists for p in group]
    assert sorted(grouped) == sorted(id(p) for p in learn.model.parameters()) and len(learn.opt.param_lists) == 2

@every_arch
@pytest.mark.parametrize('route', ('one cycle', 'lr_find first', 'frozen first', 'exported', 'self_pretrain'))
def test_time_scales_keep_their_learning_rate(arch, route):
    "A peak of 0.1 moves a time scale by no more than its own 0.001 a step would, by whatever route; without the lid it does."
    if not time_parameters(create_body(arch, d_in=1, d_model=16, n_layers=1)): pytest.skip(f'{arch} has no parameter that shapes time')
    def moved(ssm_lr):
        set_seed(0)
        learn = tiny(toy_dls(), arch, ssm_lr=ssm_lr)
        with learn.no_bar(), learn.no_logging():
            if route == 'lr_find first': learn.lr_find(num_it=5, show_plot=False)
            if route == 'frozen first': learn.freeze(); learn.fit(1, 1e-4); learn.unfreeze()
            if route == 'exported': learn.fit(1, 1e-4); learn.export('a.pkl'); dls, learn = learn.dls, load_learner('a.pkl'); learn.dls = dls
            before = {k: p.detach().clone() for k, p in time_parameters(learn.model).items()}
            if route == 'self_pretrain': learn.self_pretrain(2, lr=.1)
            else: learn.fit_one_cycle(2, .1, wd=.1)
            steps = 2*len(learn.dls.train)
        return max((p-before[k]).abs().max().item() for k, p in time_parameters(learn.model).items()), steps
    far, steps = moved(1e-3)
    assert 0 < far <= 1.2e-3*steps
    assert moved(None)[0] > 3*far

def test_presets_bring_their_own_rates():
    learn = sp_learner(toy_dls('array2'), 's4', size='paper-pathx-small')
    row = paper_rows['pathx-small']['s4']
    assert (learn.lr, learn.ssm_lr, learn.wd, learn.pool) == (row['lr'], row['ssm_lr'], row['wd'], row['pool'])
    assert (sp_learner(toy_dls('array2'), 's4', size='paper-pathx-small', lr=.3, pool='max', ssm_lr=None).ssm_lr) is None
    assert sp_learner(toy_dls('array2'), 'mega', size='paper-image', n_layers=1).ssm_lr is None                  # MEGA has no rates of its own
    body = learn.model.body.config
    assert all(body[k] == row[k] for k in ('n_layers', 'd_model', 'norm', 'dt_min'))

# careful beginnings stay (TRAPS 11)

@every_arch
def test_step_sizes_begin_in_their_range_and_keep_it_through_a_new_head(arch):
    learn = tiny(toy_dls(), arch)
    def steps(): return {n: p.exp().detach().clone() for n, p in learn.model.named_parameters() if n.endswith('log_dt')}
    before = steps()
    for n, dt in before.items():
        mixer = learn.model.body.blocks[0].mixer
        low, high = (learn.model.body.config.get(k) for k in ('dt_min', 'dt_max'))
        assert dt.min() >= low*(1-1e-5) and dt.max() <= high*(1+1e-5), n
    from lrpt_nb.learner import supervised_head
    learn.model.head = supervised_head(learn.dls, learn.model.body.d_model, 'max')
    assert all(torch.equal(v, before[n]) for n, v in steps().items())

# any length, and another length than it was trained at (TRAPS 22, 23)

@every_arch
@every_way
def test_any_length(arch, causal):
    set_seed(0)
    body = create_body(arch, d_in=2, d_model=16, n_layers=1, causal=causal)
    for L in (1, 2, 3, 7, 31, 33, 63, 65, 100, 1000):
        x = torch.randn(1, L, 2, requires_grad=True)
        y = body(x)
        assert y.shape == (1, L, 16)
        g, = torch.autograd.grad(y.square().sum() + y.sum(), x)
        assert torch.isfinite(y).all() and torch.isfinite(g).all()

@every_arch
def test_longer_and_shorter_than_in_pretraining(arch):
    "A causal body trained at 64 gives at 48 and 256 what it gave on the steps they share: kernels, rotations and tables do not depend on the length."
    for pos in ['none', 'rotary', 'alibi'] if arch_info(arch).family == 'attention' else ['none']:
        set_seed(0)
        body, x = create_body(arch, d_in=2, d_model=16, n_layers=2, causal=True, pos=pos).eval(), torch.randn(1, 256, 2)
        with torch.no_grad(): at64, at48, at256 = (body(x[:, :L]) for L in (64, 48, 256))
        assert rel_err(at64[:, :48], at48) < 1e-5 and rel_err(at256[:, :64], at64) < 1e-5
        for o in body.modules():
            if hasattr(o, 'kernel'): assert rel_err(o.kernel(256)[..., :64], o.kernel(64)) < 1e-5

def test_a_learned_table_names_both_lengths():
    body = create_body('transformer', d_in=2, d_model=16, pos='learned', max_len=64)
    body(torch.randn(1, 48, 2))
    with pytest.raises(ValueError, match='256.*64|64.*256'): body(torch.randn(1, 256, 2))

# memory (TRAPS 24)

def kept(body, L):
    "Bytes autograd keeps of one forward pass, each storage once."
    seen = {}
    def pack(t):
        seen[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t): y = body(torch.randn(1, L, 2))
    return sum(seen.values())

@pytest.mark.parametrize('arch', [o for o in archs if arch_info(o).family == 'ssm' or o == 'local_transformer'])
@every_way
def test_memory_is_linear_in_the_length(arch, causal):
    kw = dict(window=64) if arch == 'local_transformer' else {}
    body = create_body(arch, d_in=2, d_model=16, n_layers=1, causal=causal, **kw)
    assert kept(body, 8192) < 2.2*kept(body, 4096)

@every_arch
def test_a_learner_says_what_it_computes_with(arch):
    said = tiny(toy_dls(), arch).backend
    assert isinstance(said, str) and any(o in said for o in ('Fourier', 'scan', 'attention', 'does not say')), said

# step by step and in pieces (TRAPS 30, 32)

def test_some_architectures_are_recurrent(): assert {'s4', 's4d', 'dss', 'dlr', 'lru', 's5'} <= set(recurrent)

@pytest.mark.parametrize('arch', recurrent)
@pytest.mark.parametrize('trained', (False, True), ids=('new', 'after a step'))
def test_steps_and_pieces_equal_the_whole(arch, trained):
    set_seed(0)
    body, x = create_body(arch, d_in=2, d_model=16, n_layers=4, causal=True), torch.randn(2, 200, 2)
    if trained:
        opt = torch.optim.Adam(body.parameters(), 1e-2)
        body(x).roll(1, 1).diff(dim=1).square().mean().backward()
        opt.step()
    body.eval()
    with torch.no_grad():
        whole = body(x)
        state, steps = None, []
        for t in range(200):
            y, state = body.step(x[:, t], state)
            steps.append(y)
        assert rel_err(torch.stack(steps, 1), whole) < 1e-4
        for cuts in (32, 32, 32, 32, 72), (1, 127, 72):
            state, parts = None, []
            for part in x.split(cuts, 1):
                y, state = body.extend(part, state)
                parts.append(y)
            assert rel_err(torch.cat(parts, 1), whole) < 1e-5

@every_arch
def test_two_way_bodies_refuse_to_step(arch):
    with pytest.raises(ValueError, match='causal=False'): create_body(arch, d_in=2, d_model=16, n_layers=1).step(torch.randn(1, 2))

@pytest.mark.parametrize('arch', recurrent)
def test_a_state_that_does_not_fit_is_refused(arch):
    body, x = create_body(arch, d_in=2, d_model=16, n_layers=2, causal=True), torch.randn(2, 16, 2)
    state = body.extend(x[:, :5])[1]
    for bad, match in ((state[:1], '1 entries.*2 layers'), (state*2, '4 entries.*2 layers'), ([o[:1] for o in state], 'state must be'), ([o.half() for o in state], 'float16')):
        with pytest.raises((TypeError, ValueError), match=match): body.extend(x[:, 5:], bad)
    with pytest.raises(ValueError, match='batch of 1'): body.extend(x[:1, 5:], state)
    empty, same = body.extend(x[:, :0], state)
    assert empty.shape == (2, 0, 16) and rel_err(body.extend(x[:, 5:], same)[0], body(x)[:, 5:]) < 1e-4

# training after inference, and with blocks computed twice

@every_arch
def test_trains_after_inference_mode(arch):
    for pos in ['none', 'sinusoidal', 'learned'] + (['rotary', 'alibi'] if 'pos' in arch_info(arch).settings() else []):
        body, x = create_body(arch, d_in=2, d_model=16, n_layers=1, pos=pos, max_len=20), torch.randn(2, 13, 2)
        with torch.inference_mode(): body(x)
        body(x).sum().backward()

@every_arch
@pytest.mark.parametrize('norm', ('layer', 'batch'))
def test_blocks_computed_twice_are_the_same_step(arch, norm):
    "Outputs, gradients and running statistics, dropout included."
    set_seed(0)
    plain, x, lengths = create_body(arch, d_in=2, d_model=16, n_layers=2, norm=norm, dropout=.1), torch.randn(3, 24, 2), torch.tensor([24, 9, 1])
    twice, out = checkpoint_blocks(copy.deepcopy(plain)), []
    for body in (plain, twice):
        set_seed(1)
        y = body(x, lengths)
        y.square().mean().backward()
        out.append(y)
    assert torch.equal(*out)
    for (n, a), b in zip(plain.named_buffers(), twice.buffers()): assert torch.equal(a, b), n
    for (n, a), b in zip(plain.named_parameters(), twice.parameters()): assert a.grad is None and b.grad is None or rel_err(b.grad, a.grad) < 1e-4 or a.grad.norm() < 1e-5, n

# what is infinite is seen by nobody who may not see it, at lengths that take a Fourier transform

@every_arch
@every_way
def test_infinities_stay_in_the_padding_and_in_the_future(arch, causal):
    set_seed(0)
    body, x, lengths = create_body(arch, d_in=2, d_model=16, n_layers=2, causal=causal).eval(), torch.randn(2, 40, 2), torch.tensor([40, 30])
    wild = x.clone(); wild[1, 30:] = math.inf
    y = body(wild, lengths)
    assert torch.equal(y[1, :30], body(x, lengths)[1, :30])
    y[0].sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in body.parameters())
    if causal:
        wild = x.clone(); wild[:, 25:] = -math.inf
        assert rel_err(body(wild)[:, :25], body(x)[:, :25]) < 1e-5 and body(wild)[:, 25:].isnan().all()
