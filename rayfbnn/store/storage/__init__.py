"""Where the files of a store are: folders of a POSIX file system, or buckets of an object store."""
