"""`python -m gpusage.cli`: the command line, where no script is installed."""

from gpusage.cli import main

if __name__ == "__main__":
    main()
