// Symbol visibility: the build hides all symbols except those that the public headers mark SPARSELOOM_API.
#pragma once

#define SPARSELOOM_API __attribute__((visibility("default")))
