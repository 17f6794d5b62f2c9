"""The ctypes side is what the header and the C compiler say."""
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from draftwood import _abi

HERE = os.path.dirname(os.path.abspath(__file__))
GENERATOR = os.path.join(HERE, "../abi.py")
SOURCES = os.path.join(HERE, "../../../src")


def generate(*arguments):
    return subprocess.run([sys.executable, GENERATOR, *arguments], capture_output=True, text=True)


class Abi(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def test_generated_file_is_of_this_header(self):
        checked = generate("--check")
        self.assertEqual((checked.returncode, checked.stdout, checked.stderr), (0, "", ""))

    def test_layout_is_the_compilers(self):
        source, program = os.path.join(self.folder, "offsets.c"), os.path.join(self.folder, "offsets")
        self.assertEqual(generate("--offsets", source).returncode, 0)
        subprocess.run(["cc", "-I", SOURCES, source, "-o", program], check=True)
        lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
        self.assertGreater(len(lines), 200)
        seen = {}
        for line in lines:
            name, *numbers = line.split()
            struct, _, field = name.partition(".")
            cls = getattr(_abi, struct)
            seen.setdefault(struct, set())
            if field:
                seen[struct].add(field)
                place = getattr(cls, field)
                self.assertEqual([place.offset, place.size], [int(n) for n in numbers], line)
            else:
                self.assertEqual(ctypes.sizeof(cls), int(numbers[0]), line)
        for struct, fields in seen.items():
            self.assertEqual(fields, {name for name, *_ in getattr(_abi, struct)._fields_})

    def changed(self, pattern, text):
        """A copy of the header with one change; what --check says of it."""
        for name in ("draftwood.h", "draftwood_companions.h", "draftwood_variant.def"):
            shutil.copy(os.path.join(SOURCES, name), self.folder)
        path = os.path.join(self.folder, "draftwood.h")
        with open(path, encoding="utf-8") as file:
            before = file.read()
        after = re.sub(pattern, text, before, count=1)
        self.assertNotEqual(before, after)
        with open(path, "w", encoding="utf-8") as file:
            file.write(after)
        return generate("--check", "--header", path)

    def test_a_new_field_is_noticed(self):
        checked = self.changed(r"float softmax_scale;", "float softmax_scale; int new_field;")
        self.assertEqual(checked.returncode, 1)
        self.assertIn('+        ("new_field", c_int),', checked.stdout)

    def test_a_new_status_is_noticed(self):
        checked = self.changed(r"X\(BAD_BUNDLE, ([^)]*)\)", r'X(BAD_BUNDLE, \1) X(NEW_STATUS, "new")')
        self.assertEqual(checked.returncode, 1)
        self.assertIn("+    NEW_STATUS = ", checked.stdout)

    def test_a_new_argument_is_noticed(self):
        self.assertEqual(self.changed(r"dw_freeze\(dw_ctx \*ctx,", "dw_freeze(dw_ctx *ctx, int how,").returncode, 1)


if __name__ == "__main__":
    unittest.main()
