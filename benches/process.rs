//! What the kernel tells of a process.

use std::fs;

/// Resident memory now, MB.
pub fn rss(pid: u32) -> f64 {
    kilobytes(pid, "status", "VmRSS:") / 1e3
}

/// The most it ever was, MB.
pub fn peak(pid: u32) -> f64 {
    kilobytes(pid, "status", "VmHWM:") / 1e3
}

/// Memory that only this process has and that it wrote to, KB.
pub fn private_dirty(pid: u32) -> f64 {
    kilobytes(pid, "smaps_rollup", "Private_Dirty:")
}

/// CPU time of all its threads so far, seconds.
pub fn cpu(pid: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let nanoseconds = tasks.map(|task| {
        let text = fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<f64>().unwrap()
    });
    nanoseconds.sum::<f64>() / 1e9
}

/// How many threads it has.
pub fn threads(pid: u32) -> f64 {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count() as f64
}

/// How often it was woken so far.
pub fn wakeups(pid: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    field(&text, "voluntary_ctxt_switches:")
}

fn kilobytes(pid: u32, file: &str, name: &str) -> f64 {
    field(&fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap(), name)
}

fn field(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}
