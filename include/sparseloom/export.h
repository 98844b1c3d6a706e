// Symbol visibility: the build hides all symbols except those marked SPARSELOOM_API. In the public headers
// the mark is a promise to users. In src/ it marks the functions that bindings/torch calls besides, because
// the torch library is another shared object; those declarations promise nothing to users, and their headers
// are not installed.
#pragma once

#define SPARSELOOM_API __attribute__((visibility("default")))
