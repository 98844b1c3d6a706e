// Symbol visibility: everything is hidden but what the public headers declare.
#pragma once

#define SPARSELOOM_API __attribute__((visibility("default")))
