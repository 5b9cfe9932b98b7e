"""What pyproject.toml cannot say: the part in C, which a machine without a compiler goes without."""

from setuptools import Extension, setup

MODULES = {
    "kvscope.traces._speed": "traces/speed.c",
    "kvscope.engine._lanes": "engine/lanes.c",
    "kvscope.inspector._screen": "inspector/screen/live.c",
}

setup(ext_modules=[Extension(name, [source], optional=True) for name, source in MODULES.items()])
