#!/usr/bin/env python3
"""Prints a notebook as text: a heading a cell, its source, and its outputs shortened. `make hooks` lets `git diff` use it."""
import sys
from repo import read_nb, text

def shown(o, most=12):
    "Output `o` as at most `most` lines."
    if o['output_type'] == 'stream': s = text(o['text'])
    elif o['output_type'] == 'error': s = f"{o['ename']}: {o['evalue']}"
    else:
        kinds = [f'<{k}, {len(text(v))} characters>' for k, v in o['data'].items() if not k.startswith('text/')]
        s = '\n'.join([text(o['data'].get('text/plain', ''))] + kinds)
    lines = s.strip('\n').splitlines()
    return lines[:most] + ([f'... {len(lines)-most} more lines'] if len(lines) > most else [])

def main():
    if len(sys.argv) != 2: sys.exit('usage: nb_text.py NOTEBOOK')
    for c in read_nb(sys.argv[1])['cells']:
        print(f"# %% [{c['cell_type']}] {c.get('id', '')}\n{c['source']}\n")
        for o in c.get('outputs', []): print(*('#> ' + l for l in shown(o)), '', sep='\n')

if __name__ == '__main__': main()
