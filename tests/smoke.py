"A tiny run through the library's front door, for an interpreter that has it installed; prints `smoke ok`."
import tempfile
from pathlib import Path
import numpy as np
from fastai.learner import load_learner
from lrpt_nb.data import seq_dls
from lrpt_nb.learner import sp_learner

rng = np.random.default_rng(0)
y = rng.integers(0, 2, 40)
# lists of unequal arrays, the kind of input that needs the most care
x = [(rng.normal(size=(n, 2)) + c).astype('float32') for n, c in zip(rng.integers(6, 14, 40), y)]

for arch in 'transformer', 's4d':
    dls = seq_dls(x, y, valid=0.25, bs=8, seed=0)
    learn = sp_learner(dls, arch=arch, d_model=16, n_layers=1, seed=0)
    with learn.no_bar(), learn.no_logging(), tempfile.TemporaryDirectory() as d:
        learn.self_pretrain(1)
        learn.fit_one_cycle(1, 1e-3)
        preds, _ = learn.get_preds()
        assert preds.shape == (10, 2) and preds.isfinite().all(), (arch, preds)
        learn.save_body(Path(d)/'body')
        other = sp_learner(dls, arch=arch, d_model=16, n_layers=1, pretrained=Path(d)/'body', seed=1)
        want = learn.model.body.state_dict()
        assert all(v.equal(want[k]) for k, v in other.model.body.state_dict().items())
        probs = learn.predict(x[0])[2]
        learn.export(Path(d)/'model.pkl')
        assert load_learner(Path(d)/'model.pkl').predict(x[0])[2].allclose(probs, atol=1e-6)
print('smoke ok')
