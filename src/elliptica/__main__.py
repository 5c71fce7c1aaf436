"""Entry point of the command line, ``elliptica`` or ``python -m elliptica``."""

from elliptica.cli import app


def main() -> None:
    """Run the command line."""
    app(prog_name="elliptica")


if __name__ == "__main__":
    main()
