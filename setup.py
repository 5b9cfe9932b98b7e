"""What pyproject.toml cannot say: the part in C, which a machine without a compiler goes without."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("kvscope.traces._speed", ["traces/speed.c"], optional=True)])
