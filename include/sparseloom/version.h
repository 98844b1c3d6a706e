// The one version number: CMake and pyproject.toml read it from here.
#pragma once

#define SPARSELOOM_VERSION "0.1.0"
