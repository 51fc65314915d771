"Reads `settings.ini`, the single source of the package's facts, and hands them to setuptools."
from configparser import ConfigParser
from pathlib import Path
from setuptools import setup

here = Path(__file__).parent
cfg = ConfigParser(delimiters=['='])
cfg.read(here/'settings.ini', encoding='utf8')
cfg = cfg['DEFAULT']

licenses = {'apache2': 'Apache-2.0'}
statuses = {'3': '3 - Alpha', '4': '4 - Beta', '5': '5 - Production/Stable'}

def lines(key):
    "The non-empty lines of a multi-line setting: never split on spaces, since markers hold some."
    return [o.strip() for o in cfg.get(key, '').splitlines() if o.strip()]

suffix = '_requirements'
extras = {k[:-len(suffix)]: lines(k) for k in cfg if k.endswith(suffix)}
name = cfg['lib_name']

setup(
    name=name,
    version=cfg['version'],
    description=cfg['description'],
    long_description=(here/'README.md').read_text(encoding='utf8'),
    long_description_content_type='text/markdown',
    author=cfg['author'],
    license=licenses[cfg['license']],
    url=cfg['git_url'],
    keywords=cfg['keywords'].split(),
    python_requires='>=' + cfg['min_python'],
    packages=[cfg['lib_path']],
    package_data={cfg['lib_path']: ['*.json', '*.html', '*.css']},
    install_requires=lines('requirements'),
    extras_require=extras,
    entry_points={'console_scripts': lines('console_scripts'), 'nbdev': [f'{name}={name}._modidx:d']},
    classifiers=[
        f"Development Status :: {statuses[cfg['status']]}",
        f"Intended Audience :: {cfg['audience']}",
        f"Natural Language :: {cfg['language']}",
        'Programming Language :: Python :: 3',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
    zip_safe=False,
)
