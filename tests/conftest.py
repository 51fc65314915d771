"What every test needs set before torch or matplotlib load, and paths to the repository."
import os, sys
from pathlib import Path

# Triton's interpreter stays off: without it and without a GPU the torch paths are taken, which is what most users run.
# A test of the Triton kernels starts a process of its own with TRITON_INTERPRET=1.
os.environ['OMP_WAIT_POLICY'] = 'PASSIVE'
for o in 'OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'OPENBLAS_NUM_THREADS': os.environ[o] = '1'
os.environ['MPLBACKEND'] = 'Agg'
import tempfile
os.environ.setdefault('LRPT_NB_DATA', tempfile.mkdtemp(prefix='lrpt_data_')) # no test writes to the user's own cache

ROOT = Path(__file__).resolve().parent.parent
# the working tree before any installed copy, also in processes that tests start elsewhere
for o in ROOT/'tools', ROOT: sys.path.insert(0, str(o))
os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get('PYTHONPATH')]))

import pytest

@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    "Run the test inside an empty folder: `tmp_path`, also the return value."
    monkeypatch.chdir(tmp_path)
    return tmp_path
