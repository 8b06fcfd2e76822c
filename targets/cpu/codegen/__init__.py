"""From the nodes of a region to C++ text: symbolic shapes, strided references, one emitter per op family."""
