"Labels and rows as people hold them: conventions of other libraries, containers of other libraries, and errors that name what is wrong."
import numpy as np
import pytest

from lrpt_nb.data import seq_dls
from lrpt_nb.targets import TargetPrep

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
