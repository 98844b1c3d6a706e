"""The site that `make docs` builds: pages of docs/ put together with what is made at build time."""
