//! How often the API server may be asked, as the flags and `clientConnection` of the file say.

/// Upstream's, where the other one is given.
const QPS: f32 = 500.0;
const BURST: u32 = 500;

/// How often the API server may be asked for each kind of resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestRate {
    /// In a second, in the long run; more than none.
    pub per_second: f32,
    /// At once; at least one.
    pub burst: u32,
}

/// Upstream's defaults are for what is left out beside the other: unlike there nothing is limited by default.
pub(super) fn rate(qps: Option<f32>, burst: Option<i32>) -> Option<RequestRate> {
    if qps.is_none() && burst.is_none() {
        return None;
    }
    let per_second = qps.unwrap_or(QPS);
    let burst = burst.map_or(BURST, |burst| u32::try_from(burst).unwrap_or(0).max(1));
    // To client-go, too, a negative one is no limit. 0 is 5 in a second there, which nobody means who writes it; nor can NaN be a rate.
    (per_second > 0.0).then_some(RequestRate { per_second, burst })
}
