"""A package with libraries in it is for one platform ($DRAFTWOOD_PLATFORM), though for every Python."""
import os

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.dist import Distribution


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", os.environ["DRAFTWOOD_PLATFORM"]


class WithLibraries(Distribution):
    def has_ext_modules(self):
        return True


carries = "DRAFTWOOD_PLATFORM" in os.environ
setup(**({"cmdclass": {"bdist_wheel": Wheel}, "distclass": WithLibraries} if carries else {}))
