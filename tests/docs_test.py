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
"""The pages of the documentation: their examples run, what they name is there.

That the site can be built without a warning is checked by `.ci/run`.
"""

import importlib.util
import inspect
import json
import pathlib
import re
import types

import pytest

import tfp_diag
from benchmarks import tables
from tests import written_examples

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = ROOT / 'docs' / 'pages'
TEXTS = {
  path.relative_to(PAGES).as_posix(): path.read_text(encoding='utf-8')
  for path in sorted(PAGES.rglob('*.md'))
}
WITH_EXAMPLES = [
  name
  for name, text in TEXTS.items()
  if written_examples.blocks(text, 'python')
]
# Works without a DOI: a chapter of a report, and software.
WITHOUT_DOI = ('S. Becker and Y. LeCun', 'https://github.com/microsoft/folx')
PUBLIC = (tfp_diag, tfp_diag.sparsity, tfp_diag.mcmc, tfp_diag.examples)


@pytest.mark.usefixtures('no_rule_left_behind')
@pytest.mark.parametrize('name', WITH_EXAMPLES)
def test_examples_run_and_give_what_they_say(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  blocks = written_examples.blocks(TEXTS[name], 'python')
  assert written_examples.run(blocks, {}) > 0


def test_there_are_examples_on_most_pages():
  assert len(WITH_EXAMPLES) > 15


def test_what_is_not_run_says_why():
  marks = [
    line
    for text in TEXTS.values()
    for line in text.splitlines()
    if line.startswith(written_examples.NOT_RUN)
  ]
  assert marks
  for mark in marks:
    why = mark.removeprefix(written_examples.NOT_RUN).removesuffix(' -->')
    assert len(why.split()) > 2, mark


def test_every_public_name_is_in_the_reference():
  entries = set(
    re.findall(r'^::: (\S+)$', ''.join(TEXTS.values()), re.MULTILINE)
  )
  names = {
    f'{package.__name__}.{name}'
    for package in PUBLIC
    for name in package.__all__
    if not (package is tfp_diag and name in ('examples', 'mcmc', 'sparsity'))
  }
  assert entries == names - {'tfp_diag.__version__'}


def test_members_that_the_reference_lists_exist():
  for text in TEXTS.values():
    for name, members in re.findall(
      r'^::: (\S+)\n    options:\n      members: \[(.*)\]', text, re.MULTILINE
    ):
      owner = getattr(tfp_diag, name.removeprefix('tfp_diag.'))
      for member in members.split(', '):
        assert inspect.getdoc(getattr(owner, member)), f'{name}.{member}'


def test_the_reference_lists_inherited_members():
  import griffe  # It takes long.

  extensions = griffe.load_extensions(str(ROOT / 'docs' / 'public_names.py'))
  loader = griffe.GriffeLoader(extensions=extensions, search_paths=[ROOT])
  package = loader.load('tfp_diag')
  loader.resolve_aliases()
  for name in tfp_diag.mcmc.__all__:
    owner = getattr(tfp_diag.mcmc, name)
    if not isinstance(owner, type):
      continue
    listed = package[f'mcmc.{name}'].all_members
    for member in dir(owner):
      is_public = not member.startswith('_') and not hasattr(tuple, member)
      value = inspect.getattr_static(owner, member)
      if is_public and isinstance(value, property | types.FunctionType):
        assert listed[member].has_docstring, f'{name}.{member}'
  assert 'copy' in package['mcmc.PreconditionedMALA'].all_members


def test_the_table_is_that_of_the_run():
  file = ROOT / 'benchmarks' / 'results.json'
  data = json.loads(file.read_text(encoding='utf-8'))
  assert tables.of_cases(data).strip() in TEXTS['benchmarks.md']
  for name in ('tensorflow', 'jax', 'asdex', 'torch', 'numpy'):
    assert data['about']['versions'][name] in TEXTS['benchmarks.md']


def test_the_command_line_is_that_of_the_program():
  path = ROOT / 'docs' / 'command_line_reference.py'
  spec = importlib.util.spec_from_file_location(path.stem, path)
  script = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(script)
  assert script.main(['--check']) == 0


def test_the_extras_exist():
  project = (ROOT / 'pyproject.toml').read_text(encoding='utf-8')
  texts = [*TEXTS.values(), (ROOT / 'README.md').read_text(encoding='utf-8')]
  for text in texts:
    for names in re.findall(r"pip install '\.\[([\w,]+)\]'", text):
      for extra in names.split(','):
        assert re.search(rf'^{extra} = ', project, re.MULTILINE), extra


def test_the_files_of_the_map_exist():
  text = TEXTS['contributing.md']
  table = text[text.index('## Map of the files') :]
  for cell in re.findall(r'^\| ([^|]+) \|', table, re.MULTILINE):
    folder = ROOT
    for name in re.findall('`([^`]+)`', cell):
      # Those that follow are beside the first.
      path = ROOT / name if '/' in name else folder / name
      assert path.exists(), name
      folder = path.parent


def test_the_tests_that_are_named_exist():
  text = TEXTS['how_to/from_torch_and_jax.md']
  table = text[text.index('## Compared with other tools, test by test') :]
  names = [
    name
    for cell in re.findall(r'\| ([^|]+) \|$', table, re.MULTILINE)[1:]
    for name in re.findall('`([^`]+)`', cell)
  ]
  assert len(names) > 10
  for name in names:
    assert (ROOT / 'tests' / name).exists(), name


@pytest.mark.parametrize('name', TEXTS)
def test_links_lead_to_files(name):
  for target in re.findall(r'\]\(([^)#:]+\.\w+)\)', TEXTS[name]):
    assert (PAGES / name).parent.joinpath(target).exists(), target


def test_references_have_a_doi():
  references = [
    reference
    for text in TEXTS.values()
    for section in text.split('## References\n')[1:]
    for reference in re.findall(r'^- .*(?:\n  .*)*', section, re.MULTILINE)
  ]
  assert len(references) > 15
  for reference in references:
    if not any(work in reference for work in WITHOUT_DOI):
      assert re.search(r'\(https://doi\.org/10\.[^)]+\)', reference), reference


def test_citation_and_version_agree():
  text = (ROOT / 'CITATION.cff').read_text(encoding='utf-8')
  assert f'\nversion: {tfp_diag.__version__}\n' in text
