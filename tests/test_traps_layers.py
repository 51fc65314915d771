"TRAPS 1, 2, 3, 5, 6, 7: numerics of every registered architecture, causal and two-way."
import math, shutil, warnings
import pytest, torch
from torch import nn
from toys import archs, ways
from lrpt_nb.core import rel_err, set_seed
from lrpt_nb.models import create_body

every_arch = pytest.mark.parametrize('arch', archs)
every_way = pytest.mark.parametrize('causal', ways.values(), ids=ways)

def body(arch, causal=False, n_layers=2, **kw):
    set_seed(0)
    return create_body(arch, d_in=2, d_model=16, n_layers=n_layers, causal=causal, **kw)

def fit(model, steps, lr, x, forward=None):
    "Adam on reconstructing `x` by a linear head; the losses."
    set_seed(1)
    head = nn.Linear(16, 2)
    opt = torch.optim.Adam([*model.parameters(), *head.parameters()], lr)
    losses = []
    for _ in range(steps):
        loss = (head((forward or model)(x)) - x.roll(1, 1)).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        losses.append(loss.item())
    return losses

# finite whatever the step (TRAPS 1)

@every_arch
@every_way
def test_two_hundred_rough_steps_stay_finite(arch, causal):
    model = body(arch, causal)
    losses = fit(model, 200, 1e-2, torch.randn(4, 24, 2))
    assert all(map(math.isfinite, losses)) and all(torch.isfinite(p).all() for p in model.parameters())
    assert min(losses[-20:]) < losses[0]

@every_arch
@every_way
@pytest.mark.parametrize('log_dt', (10., -20.))
def test_absurd_step_sizes_are_finite(arch, causal, log_dt):
    model = body(arch, causal)
    steps = [p for n, p in model.named_parameters() if 'log_dt' in n]
    if not steps: pytest.skip(f'{arch} has no step size')
    for p in steps: nn.init.constant_(p, log_dt)
    x = torch.randn(2, 40, 2, requires_grad=True)
    y = model(x)
    y.square().sum().backward()
    assert torch.isfinite(y).all() and torch.isfinite(x.grad).all()
    for n, p in model.named_parameters(): assert p.grad is None or torch.isfinite(p.grad).all(), n

# nothing complex in an optimiser's hands (TRAPS 2, 6)

@every_arch
@every_way
def test_no_complex_parameter_and_no_discarded_imaginary_part(arch, causal):
    model = body(arch, causal)
    assert not any(p.is_complex() for p in [*model.parameters(), *model.buffers()])
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='Casting complex')
        fit(model, 2, 1e-3, torch.randn(2, 30, 2))
    for n, p in model.named_parameters():
        if n.endswith('freq'): assert p.grad.abs().sum() > 0, n

# half precision (TRAPS 3, 5)

@every_arch
@every_way
@pytest.mark.parametrize('L', (1000, 1023))
def test_autocast_is_close_at_lengths_that_are_no_powers_of_two(arch, causal, L):
    model, x = body(arch, causal, n_layers=1), torch.randn(1, L, 2)
    with torch.no_grad():
        want = model(x)
        with torch.autocast('cpu', torch.bfloat16): got = model(x)
    assert torch.isfinite(got).all() and rel_err(got, want) < .05

@every_arch
def test_parameters_cast_to_bfloat16_do_not_overflow(arch):
    "What shapes time stays in float32: a cast model is as close to the float32 one as autocast is, over a thousand steps."
    model, x = body(arch), torch.randn(2, 1000, 2)
    with torch.no_grad():
        want = model(x)
        got = model.bfloat16()(x.bfloat16())
    assert got.dtype == torch.bfloat16 and rel_err(got.float(), want) < .02
    for n, p in model.named_parameters():
        if n.rsplit('.', 1)[-1] in ('log_dt', 'log_decay', 'freq', 'root_decay', 'log_nu', 'log_theta'): assert p.dtype == torch.float32, n

# torch.compile (TRAPS 7)

@every_arch
@every_way
def test_compiled_equals_eager(arch, causal):
    "Forward and backward, through the graph capture that every compiler backend shares."
    model, x = body(arch, causal, n_layers=1), torch.randn(2, 50, 2)
    g = torch.randn(2, 50, 16)
    def outcome(f):
        model.zero_grad()
        y = f(x)
        y.backward(g)
        return [y.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    want = outcome(model)
    torch._dynamo.reset()
    for got, w in zip(outcome(torch.compile(model, backend='aot_eager')), want): assert rel_err(got, w) < 1e-4

@pytest.mark.skipif(not shutil.which('gcc'), reason='the default compiler backend needs a C compiler')
@pytest.mark.parametrize('arch', [o for o in archs if o != 'transformer'])
def test_default_compiler_equals_eager(arch):
    model, x = body(arch, n_layers=1), torch.randn(2, 50, 2)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings('error', message='.*complex.*')
        got = torch.compile(model)(x)
    assert rel_err(got, model(x)) < 1e-4
