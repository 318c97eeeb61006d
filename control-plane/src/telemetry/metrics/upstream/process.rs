//! Resource usage of this process, with the standard names of Prometheus' clients.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Read at each scrape. Unreadable values are omitted.
#[derive(Debug)]
pub(in crate::telemetry::metrics) struct Process;

struct Usage {
    cpu_seconds: f64,
    start_time_seconds: f64,
    resident_bytes: f64,
    virtual_bytes: f64,
    open_fds: f64,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(usage) = usage() else {
            return Ok(());
        };
        let help = "Total user and system CPU time spent in seconds";
        let cpu = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(usage.cpu_seconds).encode(cpu)?;
        let gauges = [
            (
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds",
                usage.start_time_seconds,
            ),
            (
                "process_resident_memory_bytes",
                "Resident memory size in bytes",
                usage.resident_bytes,
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory size in bytes",
                usage.virtual_bytes,
            ),
            (
                "process_open_fds",
                "Number of open file descriptors",
                usage.open_fds,
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(value).encode(gauge)?;
        }
        Ok(())
    }
}

fn usage() -> Option<Usage> {
    let process = procfs::process::Process::myself().ok()?;
    let stat = process.stat().ok()?;
    let ticks = procfs::ticks_per_second() as f64;
    Some(Usage {
        cpu_seconds: (stat.utime + stat.stime) as f64 / ticks,
        start_time_seconds: procfs::boot_time_secs().ok()? as f64 + stat.starttime as f64 / ticks,
        resident_bytes: (stat.rss * procfs::page_size()) as f64,
        virtual_bytes: stat.vsize as f64,
        open_fds: process.fd_count().ok()? as f64,
    })
}
