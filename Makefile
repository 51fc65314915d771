# An environment is made once and kept: the stamps in it are older than settings.ini or setup.py only after a change there.
PYTHON ?= python3
VENV   ?= .venv
TASK   ?= digit_pairs

BIN := $(VENV)/bin
LOG := $(VENV)/pip.log

# with the default busy-waiting OpenMP pool two processes on two cores stand in each other's way
export OMP_WAIT_POLICY := PASSIVE

# pip's own warnings go to the log, which is shown when pip fails
define install
	@echo "Installing $(1) into $(VENV) (a few minutes the first time; log in $(LOG)) ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e "$(1)" >$(LOG) 2>&1 </dev/null \
		|| { cat $(LOG); echo "pip could not install $(1): see above"; exit 1; }
endef

.PHONY: help demo test export readme docs hooks clean distclean
.DEFAULT_GOAL := help

help:  ## what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed  ## install, then compare on digit_pairs (another task: make demo TASK=digits); writes runs/
	$(BIN)/lrpt_compare $(TASK)

test: $(VENV)/.installed-dev  ## install with the development extra, then run every check and test
	@$(BIN)/python tools/run_tests.py

export: $(VENV)/.installed-dev  ## write lrpt_nb/ and nbs/nbdev.yml from the notebooks and settings.ini
	$(BIN)/nbdev_export
	@$(BIN)/python -c 'from nbdev.quarto import refresh_quarto_yml; refresh_quarto_yml()'

readme: $(VENV)/.installed-dev  ## render README.md from nbs/index.ipynb
	$(BIN)/python tools/render_readme.py

docs: $(VENV)/.installed-dev  ## execute index and tutorials in place, then render README.md
	$(BIN)/python tools/execute_nbs.py
	$(BIN)/python tools/render_readme.py

hooks: $(VENV)/.installed-dev  ## let this clone's git diff and merge notebooks by cell
	git config diff.notebook.textconv "$(BIN)/python tools/nb_text.py"
	git config merge.nbdev-merge.name "nbdev: conflicts cell by cell"
	git config merge.nbdev-merge.driver "$(BIN)/nbdev_merge %O %A %B %P"

clean:  ## remove build products and caches
	rm -rf build dist *.egg-info _docs _proc .pytest_cache
	find . -name '$(VENV)' -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -exec rm -rf {} +

distclean: clean  ## remove the environment too
	rm -rf $(VENV)

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(v < (3, 10) and "%s is Python %d.%d: 3.10 or newer is needed (make PYTHON=...)" % ("$(PYTHON)", *v))'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: settings.ini setup.py | $(VENV)/.python
	$(call install,.)
	@touch $@

$(VENV)/.installed-dev: settings.ini setup.py | $(VENV)/.python
	$(call install,.[dev])
	@touch $(VENV)/.installed $@
