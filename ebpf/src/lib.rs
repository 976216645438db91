//! Types and decisions shared by the eBPF programs and user space.
#![no_std]
