"""Pickles for the tests of their reader: as Python 2 wrote them, and ones that would do harm."""

import io


def python2_pickle(data, labels):
    """A batch as Python 2 and its NumPy wrote it in protocol 2, opcode by opcode."""
    out = io.BytesIO()

    def text(value):  # an 8-bit string of Python 2
        out.write(b"T" + len(value).to_bytes(4, "little") + value)

    def integer(value):
        out.write(b"J" + value.to_bytes(4, "little", signed=True))

    out.write(b"\x80\x02}(")
    text(b"data")
    out.write(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n(")
    integer(0)
    out.write(b"t")
    text(b"b")
    out.write(b"\x87R")  # called with three arguments
    out.write(b"(")
    integer(1)
    out.write(b"(")
    for n in data.shape:
        integer(n)
    out.write(b"t")
    out.write(b"cnumpy\ndtype\n")
    text(b"u1")
    integer(0)
    integer(1)
    out.write(b"\x87R(")
    integer(3)
    text(b"|")
    out.write(b"NNN")
    integer(-1)
    integer(-1)
    integer(0)
    out.write(b"tb")
    out.write(b"\x89")
    text(data.tobytes())
    out.write(b"tb")
    text(b"labels")
    out.write(b"](")
    for label in labels:
        integer(label)
    out.write(b"eu.")
    return out.getvalue()


class Malicious:
    """What it asks to be called when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


CALLED = []


def trap(*arguments):
    CALLED.append(arguments)
