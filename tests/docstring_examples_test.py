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
"""The examples in all docstrings of the package run, and give what they say.

`written_examples` says how results are written.
"""

import ast
import importlib
import inspect
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_diag
from tests.written_examples import run

PACKAGE = pathlib.Path(tfp_diag.__file__).parent
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef)
REFERENCE = re.compile(r'^ *\[\d+\]: .*(?:\n +\S.*)*', re.MULTILINE)
# Works without a DOI: software.
WITHOUT_DOI = ('Inference Gym',)


def module_name(path):
  relative = path.relative_to(PACKAGE.parent).with_suffix('')
  return '.'.join(p for p in relative.parts if p != '__init__')


def docstrings():
  """(module, name, docstring) of all that has one."""
  for path in sorted(PACKAGE.rglob('*.py')):
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
      text = ast.get_docstring(node) if isinstance(node, DEFINITIONS) else None
      if text:
        yield module_name(path), getattr(node, 'name', ''), text


def documented():
  """(module, name, Python blocks of its docstring) of all that has some."""
  for module, name, text in docstrings():
    blocks = re.findall(r'```python\n(.*?)```', text, re.DOTALL)
    if blocks:
      yield module, name, blocks


# The two main functions.
SHOW_RESULTS = ('diag_jacobian', 'diag_hessian')


@pytest.mark.usefixtures('no_rule_left_behind')
@pytest.mark.parametrize(
  'module, name, blocks',
  [pytest.param(m, n, b, id=f'{m}:{n}') for m, n, b in documented()],
)
def test_example(module, name, blocks, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  names = {
    **vars(tfp_diag),
    **vars(importlib.import_module(module)),
    **{'np': np, 'tf': tf, 'tfp': tfp, 'tfp_diag': tfp_diag},
  }
  num_results = run(blocks, names)
  assert num_results or name not in SHOW_RESULTS


def test_references_have_a_doi():
  references = [
    (f'{module}.{name}', reference)
    for module, name, text in docstrings()
    for reference in REFERENCE.findall(text)
  ]
  assert len(references) > 40
  for place, reference in references:
    if not any(work in reference for work in WITHOUT_DOI):
      assert re.search(r'https://doi\.org/10\.\S+$', reference), (
        f'{place}: {reference}'
      )


def public_objects():
  """(full name, object) of all that is public, but for strings."""
  for package in (
    tfp_diag,
    tfp_diag.sparsity,
    tfp_diag.mcmc,
    tfp_diag.examples,
  ):
    for name in package.__all__:
      found = getattr(package, name)
      # Packages come with names of their own.
      if not isinstance(found, str) and not hasattr(found, '__path__'):
        yield f'{package.__name__}.{name}', found


@pytest.mark.parametrize(
  'found', [pytest.param(found, id=name) for name, found in public_objects()]
)
def test_what_is_public_has_an_example(found):
  objects = [found]
  if inspect.ismodule(found):  # Something in it has one.
    objects = [
      each
      for each in vars(found).values()
      if getattr(each, '__module__', None) == found.__name__
    ]
  assert any(
    re.search(r'#### Examples?\n.*```python', doc, re.DOTALL)
    for doc in map(inspect.getdoc, objects)
    if doc
  )


def test_the_two_main_functions_are_documented():
  names = [name for _, name, _ in documented()]
  assert [names.count(name) for name in SHOW_RESULTS] == [1, 1]


@pytest.mark.parametrize(
  'block',
  [
    '1 + 1\n# ==> 3',
    '1 + 1  # ==> 3',
    '[1.0,\n 2.0]  # Two.\n# ==> [1., 2.1]',
    "x = 'a'\nx  # ==> 'b'",
    'print\n# ==> something else',
    "print('a')\n# b",
    "print('a')\n# a\n# b",
  ],
)
def test_a_wrong_result_is_noticed(block):
  with pytest.raises(AssertionError):
    run([block], {})
