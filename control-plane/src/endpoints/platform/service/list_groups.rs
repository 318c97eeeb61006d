//! ListGroups: pages of groups. Large groups take turns.

use std::sync::Arc;

use lockstep_proto::platform::v1 as pb;
use prost::Message as _;
use tonic::{Request, Response, Status};

use super::{PlatformService, holding, not_leading};
use crate::controllers::restart::board::{Board, Key};
use crate::endpoints::platform::authorize::Caller;
use crate::endpoints::platform::convert::{self, Detail};
use crate::endpoints::platform::fields;
use crate::endpoints::platform::large::Size;

/// A page ends with the group that makes it larger than this, in bytes.
const FULL_PAGE: usize = 2 * 1024 * 1024;

/// The next page of groups that the caller may see.
pub(super) async fn list_groups(
    service: &PlatformService,
    request: Request<pb::ListGroupsRequest>,
) -> Result<Response<pb::ListGroupsResponse>, Status> {
    service.leads()?;
    let (caller, list) = Caller::of(request);
    let filter = fields::filter(list.namespace, String::new())?;
    let after = fields::after(&list.page_token, &filter)?;
    service.may(&caller, "list", &filter.namespace, "").await?;
    let (found, mut more) = service
        .board
        .list(&filter, after, fields::page_size(list.page_size));
    let detail = Detail::asked(list.omit_workers);
    let mut answer = pb::ListGroupsResponse::default();
    // A waiting call must not keep old states alive.
    let sizes = found
        .into_iter()
        .map(|(key, state)| (key, Size::of(&state, detail)));
    let found: Vec<(Key, Size)> = sizes.collect();
    let (mut size, count) = (0, found.len());
    let mut last = None;
    let line = service.lines.of(&filter.namespace);
    let (mut unread, mut looked_at) = (Vec::new(), 0);
    // A large group has a page for itself, and room of its own.
    let small = found
        .iter()
        .map(|(_, size)| *size)
        .take_while(|size| !size.is_large());
    let page = Size::of_page(small, FULL_PAGE);
    unread.extend(line.room(page).await);
    for (key, expected) in found {
        // A large group after others begins the next page.
        if expected.is_large() && !answer.groups.is_empty() {
            break;
        }
        let (of, board) = (key.clone(), Arc::clone(&service.board));
        let convert = move |size: Size| convert_group(&board, &of, detail, size);
        let small = match expected.is_large() {
            true => Err(expected),
            // There is room for the page.
            false => convert(Size::not_large()).transpose(),
        };
        let (converted, has_page) = match small {
            Ok(group) => (group.map(|group| (group, None)), false),
            // It has become large meanwhile.
            Err(_) if !answer.groups.is_empty() => break,
            Err(large) => {
                unread.clear();
                (line.convert(large, convert).await, true)
            }
        };
        looked_at += 1;
        last = Some(key);
        // A group that is gone by now is left out.
        let Some((group, room)) = converted else {
            if service.shutdown.is_cancelled() {
                return Err(not_leading());
            }
            if has_page {
                unread.extend(line.room(page).await);
            }
            continue;
        };
        unread.extend(room);
        size += group.encoded_len();
        answer.groups.push(group);
        if size > FULL_PAGE || has_page {
            break;
        }
    }
    more |= looked_at < count;
    if let Some(last) = last.filter(|_| more) {
        answer.next_page_token = fields::page_token(&last);
    }
    Ok(holding(unread, answer))
}

/// The group, if it still exists and fits into room for this size; `Err` with its size otherwise.
fn convert_group(board: &Board, key: &Key, detail: Detail, size: Size) -> Option<Result<pb::Group, Size>> {
    let state = board.snapshot(key)?;
    let now = Size::of(&state, detail);
    let group = size.holds(now).then(|| convert::group(key, &state, detail));
    Some(group.ok_or(now))
}
