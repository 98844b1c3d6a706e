"""The main job: a byte-level transformer on real text, dense beside block-sparse, trained, saved, reloaded
and measured."""
