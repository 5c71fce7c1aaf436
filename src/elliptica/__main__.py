"""Entry point of the command line, ``elliptica`` or ``python -m elliptica``."""

import sys


def main() -> None:
    """Run the command line, or say in one line what it needs."""
    try:
        from elliptica.cli import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
            raise
        sys.stderr.write(f'The command line needs {error.name}: pip install "elliptica[experiments]"\n')
        raise SystemExit(1) from None
    app(prog_name="elliptica")


if __name__ == "__main__":
    main()
