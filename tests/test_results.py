"What the repository claims agrees with the rows it keeps."
import json
from pathlib import Path

import pytest

from lrpt_nb.compare import Comparison
from lrpt_nb.tasks import find_task, load_task, task_ready, tasks

results = Path(__file__).parent.parent/'results'
def rows(name): return [json.loads(l) for l in (results/name).read_text().splitlines()]

def best(tuned, arch, init):
    return max((r for r in tuned if (r['arch'], r['init']) == (arch, init)), key=lambda r: r['valid'])

def test_recipe_is_what_tuning_found():
    "Every arm's lr and pool are the best of its tries, each arm had as many, and no try read a test row."
    tuned, recipe = rows('tuning/digit_pairs.jsonl'), tasks['digit_pairs'].recipe
    def setting(name, arch, init): return recipe[name].get(f'{arch}/{init}', recipe[name].get(arch))
    assert len(tuned) == 16 and all(r['test'] is None and r['test_scores'] is None for r in tuned)
    for arch in ('transformer', 's4d'):
        for init in ('scratch', 'masked'):
            tries = [r for r in tuned if (r['arch'], r['init']) == (arch, init)]
            assert len(tries) == 4
            top = best(tuned, arch, init)
            assert (setting('lr', arch, init), setting('pool', arch, init)) == (top['lr'], top['settings']['pool'])
            assert {r['settings']['epochs']+r['settings']['pretrain_epochs'] for r in tries} == {recipe['epochs']+recipe['pretrain_epochs']}

def test_exploration_read_no_test_row():
    assert all(r['test'] is None for r in rows('tuning/digit_pairs-exploration.jsonl'))

@pytest.mark.parametrize('name', ['digit_pairs', 'digit_pairs_long'])
def test_the_claim(name):
    "Three seeds, equal steps, a scratch arm that has stopped falling; seeds other than the tuning ones; current data."
    c = Comparison.load(results/name)
    assert sorted(c.arms) == [('s4d', 'masked'), ('s4d', 'scratch'), ('transformer', 'masked'), ('transformer', 'scratch')]
    assert all(sorted(a) == [0, 1, 2] for a in c.arms.values())
    assert c.equal_steps('masked') and not [o for o in c.cautions() if 'still learning' in o]
    fingerprint = load_task('digit_pairs').info()['fingerprint']
    assert {r['data']['fingerprint'] for r in c.rows} == {fingerprint}

def test_the_demo_shows_the_effect():
    "What the README says: at least 5 points over scratch, and the interval of the paired difference excludes zero."
    c = Comparison.load(results/'digit_pairs')
    e = c.difference(('transformer', 'masked'), ('transformer', 'scratch'))
    assert e.value >= .05 and e.low > 0

# the other tasks: one command each

ACROSS = {'digits': 'digits', 'fashion_mnist': 'fashion_mnist', 'fashion_mnist_long': 'fashion_mnist', 'listops': 'listops', 'pathfinder': 'pathfinder', 'ucr_JapaneseVowels': 'ucr/JapaneseVowels', 'ucr_OSULeaf': 'ucr/OSULeaf'}

@pytest.mark.parametrize('folder', ACROSS)
def test_other_comparisons_are_fair_and_of_these_rows(folder):
    "At least three seeds, equal steps, every arm the same settings, the recipe's rows, and test rows of every run."
    c, task = Comparison.load(results/folder), find_task(ACROSS[folder])
    assert set(c.arms) >= {(arch, init) for arch in ('transformer', 's4d') for init in ('scratch', 'masked')}
    assert len({tuple(sorted(a)) for a in c.arms.values()}) == 1 and all(len(a) >= 3 for a in c.arms.values())
    assert c.equal_steps('masked') and all(r['test'] is not None for r in c.rows)
    assert len({(r['lr'], r['settings']['bs'], r['settings']['pool']) for r in c.rows}) == 1                   # untuned: one setting for every arm
    if task_ready(ACROSS[folder]) == 'missing': pytest.skip(f'{folder} is not on this machine')
    assert {r['data']['fingerprint'] for r in c.rows} == {load_task(ACROSS[folder], bs=c.rows[0]['settings']['bs'], **task.recipe.get('task_settings', {})).info()['fingerprint']}

# speed: what README and the bench notebook say, from the rows `lrpt_bench` wrote

@pytest.fixture(scope='module')
def frame():
    from lrpt_nb.bench import load_bench
    return load_bench(results)

def test_every_timed_rung_was_right(frame):
    checked = frame[frame.rel_err.notna()]
    assert (checked.rel_err < 1e-3).all() and len(checked) > 100 and set(frame.suite) == {'block', 'conv', 'data', 'kernel', 'scan'}
    assert all(o.endswith(' kernel') for o in frame[frame.rel_err.isna()].rung)       # timed beside their block, checked in the kernel suite and the layers' notebooks

@pytest.mark.parametrize('passes', ['forward', 'forward+backward'])
def test_auto_is_the_fastest_scan(frame, passes):
    from lrpt_nb.bench import bench_table
    from lrpt_nb.scan import choose_backend
    for problem in ('scan, real', 'scan, complex', 'scan, real, constant decay'):
        table = bench_table(frame, problem, passes)
        assert list(table.columns) == [256, 1024, 4096, 16384, 65536]
        assert set(table.idxmin()) == {choose_backend('cpu')}
        assert set(table.drop(index='numba').loc[['tree', 'chunk', 'loop']].idxmin()) == {'tree'}        # what 'auto' means without numba

def test_speed_targets(frame):
    from lrpt_nb.bench import bench_table
    both = 'forward+backward'
    def cell(problem, rung, L, value='speedup', passes=both): return bench_table(frame, problem, passes, value).loc[rung, L]
    assert cell('scan, real', 'tree', 4096, passes='forward') >= 4 and cell('scan, real', 'tree', 16384, passes='forward') >= 8
    for L in (4096, 16384): assert cell('scan, real', 'numba', L, passes='forward') >= 12 and cell('scan, real', 'numba', L, 'copies', 'forward') <= 10
    assert cell('block, s4d', 's4d', 4096) >= 4 and cell('block, s4', 's4', 4096) >= 8
    for L in (1024, 4096, 16384, 65536): assert cell('block, s4d', 's4d kernel', L, 'ms') < .25*cell('block, s4d', 's4d', L, 'ms')

def test_no_store_keeps_a_small_model_waiting(frame):
    "Read by the training process itself, every store is waited for less than a tenth of a step of the smallest model; workers are not always."
    data = frame[frame.suite == 'data']
    assert set(data.rung) == {'memory', 'disk', 'disk, 2 workers', 'Dataset'} and set(data.L) == {256, 1024, 4096} and set(data.problem) == {'data, values', 'data, unequal values', 'data, tokens'}
    assert (data[data.rung != 'disk, 2 workers'].share < .1).all()

def test_presets_fit_this_machine():
    "Three steps of every Image preset within 8 GB; a step of 65,536 positions within 16 GB; as the notebook of measurements says."
    steps = rows('presets.jsonl')
    image, long = ([r for r in steps if r['L'] == L] for L in (1024, 65536))
    assert {r['arch'] for r in image} == {'transformer', 's4', 's4d', 'dlr', 'mega'} and {r['arch'] for r in long} == {'s4', 's4d', 'local_transformer'}
    assert all(r['size'] == 'paper-image' and r['bs'] == 50 and len(r['losses']) == 3 and r['peak_gib']*2**30 < 8e9 for r in image)
    assert all(r['bs'] == 1 and r['peak_gib']*2**30 < 16e9 for r in long)
