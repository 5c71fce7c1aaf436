"""Made-up files that the catalogue takes for the published ones."""

import dataclasses
import gzip
import hashlib
import io

import numpy as np

from elliptica.lab.data import catalogue


def publish(monkeypatch, folder, name, contents, rows=None):
    """Write files ``{path: bytes}`` and let the catalogue expect their hashes, and ``rows`` if given."""
    entry = catalogue.find_entry(name)
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)

    def known(file):
        if file.path not in contents or not file.hash:
            return file
        content = contents[file.path]
        digest = hashlib.sha256(gzip.decompress(content) if file.packed else content).hexdigest()
        return dataclasses.replace(file, hash=f"sha256:{digest}")

    forms = tuple(tuple(map(known, form)) for form in entry.forms)
    changed = dataclasses.replace(entry, forms=forms, rows=rows or entry.rows)
    entries = tuple(changed if one is entry else one for one in catalogue.ENTRIES)
    monkeypatch.setattr(catalogue, "ENTRIES", entries)


def npz(arrays):
    """Return the bytes of an ``.npz`` file."""
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()
