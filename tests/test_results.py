"What the repository claims agrees with the rows it keeps."
import json
from pathlib import Path

import pytest

from lrpt_nb.compare import Comparison
from lrpt_nb.tasks import load_task, tasks

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
