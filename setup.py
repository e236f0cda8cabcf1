# Copyright 2026 The tfp_diag Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
# ============================================================================
"""Installs the package: `pip install .`"""

import pathlib
import re

import setuptools

ROOT = pathlib.Path(__file__).resolve().parent

# A picture of draws or of a pattern.
PLOT = ['matplotlib>=3.8']

ARVIZ = ['arviz>=0.17']

NOTEBOOKS = [
  'ipykernel>=6.29',
  'nbclient>=0.10',
  'nbformat>=5.10',
  *ARVIZ,
  *PLOT,
]

# All that `pytest` needs, and the notebooks and pictures that it makes.
TEST = [
  'pytest>=8.0',
  'pytest-xdist>=3.8',
  'hypothesis>=6.100',
  *NOTEBOOKS,
]

# The formatter is pinned: another version may want other line breaks.
DEV = ['ruff==0.17.5', *TEST]

BENCHMARKS = [
  'asdex',
  'blackjax',
  'folx',
  'inference-gym==0.0.5',
  'jax',
  'numpyro',
  'torch',
  *PLOT,
]


def version():
  """The version, read without importing the package and TensorFlow."""
  text = (ROOT / 'tfp_diag' / 'version.py').read_text(encoding='utf-8')
  return re.search(r"^__version__ = '([^']+)'$", text, re.MULTILINE).group(1)


setuptools.setup(
  name='tfp-diag',
  version=version(),
  description='Exact diagonals of Jacobians and Hessians in TensorFlow.',
  long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
  long_description_content_type='text/markdown',
  author='The tfp_diag Authors',
  license='Apache-2.0',
  packages=setuptools.find_packages(include=['tfp_diag', 'tfp_diag.*']),
  # Its annotations are for those who call it, too.
  package_data={'tfp_diag': ['py.typed']},
  python_requires='>=3.10,<3.14',
  install_requires=[
    'tensorflow>=2.16',
    # TensorFlow Probability 0.24 and later import Keras 2 from here.
    'tf-keras>=2.16',
    'tensorflow-probability>=0.24',
    'numpy>=1.26',
    'scipy>=1.11',
    'tqdm>=4.66',
  ],
  extras_require={
    'arviz': ARVIZ,
    'benchmarks': BENCHMARKS,
    'dev': DEV,
    'gpu': ['tensorflow[and-cuda]'],
    'notebooks': NOTEBOOKS,
    'plot': PLOT,
    'test': TEST,
  },
  classifiers=[
    'Development Status :: 3 - Alpha',
    'Intended Audience :: Science/Research',
    'Programming Language :: Python :: 3',
    'Programming Language :: Python :: 3.10',
    'Programming Language :: Python :: 3.11',
    'Programming Language :: Python :: 3.12',
    'Programming Language :: Python :: 3.13',
    'Topic :: Scientific/Engineering :: Mathematics',
  ],
)
