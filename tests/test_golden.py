"S4D kernels and outputs against tensors made with the public S4 code (data only; conventions as in `lrpt_nb.ssm`)."
from pathlib import Path

import pytest, torch
from safetensors.torch import load_file

from lrpt_nb.core import rel_err
from lrpt_nb.conv import long_conv
from lrpt_nb.ssm import diag_kernel, diag_kernel_loop

golden = load_file(Path(__file__).parent/'golden'/'s4_reference.safetensors')
cases = sorted({k.rsplit('.', 1)[0] for k in golden if k.startswith('s4d.') and k.endswith('.A')})
lengths = (1, 7, 64, 100)

def read(case):
    "`A, B, C` complex and `dt, D` real of one case."
    A, B, C = (torch.view_as_complex(golden[f'{case}.{n}'].contiguous()) for n in 'ABC')
    return A, B, C, golden[f'{case}.dt'], golden[f'{case}.D']

def test_there_is_something_to_check():
    assert len(cases) == 12, cases

@pytest.mark.parametrize('L', lengths)
@pytest.mark.parametrize('case', cases)
def test_s4d(case, L):
    A, B, C, dt, D = read(case)
    K, u, y = (golden[f'{case}.L{L}.{n}'] for n in 'Kuy')
    disc = case.split('.')[2]
    fast = diag_kernel(A, B, C, dt, L, disc)
    assert rel_err(fast, K) < 2e-4
    wide = diag_kernel_loop(*(o.to(torch.complex128) for o in (A, B, C)), dt.double(), L, disc)
    assert rel_err(fast, wide) < 1e-4 and rel_err(wide, K) < 2e-4
    got = long_conv(u.transpose(1, 2), *fast) + D[:, None]*u.transpose(1, 2)
    assert rel_err(got.transpose(1, 2), y) < 2e-4
